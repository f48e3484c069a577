"""``python -m roomkeeper.tokenspeed``. Spawned schedulers may import this, and must not serve."""

from __future__ import annotations

if __name__ == "__main__":
    import sys

    from roomkeeper.tokenspeed.main import main

    sys.exit(main(sys.argv[1:]))
