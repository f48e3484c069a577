"""The soak: hours in the life of three workers, in minutes. Run by ``bench/soak``."""
