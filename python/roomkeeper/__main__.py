"""``python -m roomkeeper``. Spawned scheduler processes import this too, and must not run it."""

from __future__ import annotations

import sys

from roomkeeper.cli import main

if __name__ == "__main__":
    sys.exit(main())
