"""TokenSpeed's launcher: ``python -m roomkeeper.tokenspeed [TokenSpeed's flags] [--room-… flags]``.

Importing it loads neither TokenSpeed nor gRPC, so it costs a spawned scheduler process nothing.
"""
