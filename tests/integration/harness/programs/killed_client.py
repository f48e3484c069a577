"""A client with open streams, to be killed: ADDRESS COUNT. Rooms 1 to COUNT."""

from __future__ import annotations

import sys
import threading

from harness.client import Client


def main() -> None:
    address, count = sys.argv[1], int(sys.argv[2])
    client = Client(address)
    streams = [client.generate(f"killed-{i}", room=i + 1) for i in range(count)]
    print("open", flush=True)

    def tell(stream: object) -> None:
        stream.get(1)  # type: ignore[attr-defined]
        print("message", flush=True)

    for stream in streams:
        threading.Thread(target=tell, args=(stream,), daemon=True).start()
    threading.Event().wait(300)


main()
