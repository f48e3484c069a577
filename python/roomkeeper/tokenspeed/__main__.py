"""``python -m roomkeeper.tokenspeed``. Spawned schedulers may import this, and must not serve."""

from __future__ import annotations

if __name__ == "__main__":
    import sys

    try:
        from roomkeeper.tokenspeed.main import main
    except ImportError as error:
        print(f"roomkeeper does not import: {error}; build it first", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(sys.argv[1:]))
