"""The port of a prefill's bootstrap server, which the real one serves from its launcher.

Nobody asks it anything here, as nobody asks TokenSpeed's when KV moves by Mooncake's own means; but
that somebody listens says that a prefill runs, and that nobody does, that none does.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from roomkeeper.standin.kv import HOST, PortTaken


class BootstrapPort:
    """Listens until ``close``, and hangs up on everybody. PortTaken: it cannot; one line."""

    def __init__(self, port: int) -> None:
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._listener.bind((HOST, port))
            self._listener.listen(64)
        except OSError as error:
            self._listener.close()
            raise PortTaken(
                f"--disaggregation-bootstrap-port is {port}, but {HOST}:{port} cannot be listened "
                f"on: {error.strerror}; give another"
            ) from error
        self._thread = threading.Thread(target=self._run, name="bootstrap", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            end.close()

    def close(self) -> None:
        """Again is fine."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
