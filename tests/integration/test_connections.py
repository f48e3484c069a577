"""Listeners and connections: unix and TCP, who may connect, who is shut out, what silence may do."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import pytest

from harness.byhand import CALM, by_hand
from harness.client import GENERATE, GUARD_S, SERVING, Client, request, until
from harness.http2 import Connection
from harness.silence import Silence
from roomkeeper.config import Config
from roomkeeper.engine import WorkerInfo
from roomkeeper.errors import ServicerError
from roomkeeper.servicer import Servicer


def _servicer() -> Servicer:
    return Servicer(WorkerInfo(model_path="model"), Config(CALM))


# -- unix --


def test_a_unix_socket_serves_beside_tcp(tmp_path: Path) -> None:
    path = tmp_path / "rk.sock"
    with by_hand(listen=(f"unix:{path}",)) as worker:
        with Client(f"unix:{path}") as client:
            assert client.check() == SERVING
            stream = client.generate("r")
            worker.engine.leg("r").finish([4])
            assert stream.end().name == "OK"
            assert list(stream.complete().output_ids) == [4]
        assert worker.client.check() == SERVING


def test_a_socket_file_that_a_killed_worker_left_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "rk.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert path.exists()
    with by_hand(listen=(f"unix:{path}",)), Client(f"unix:{path}") as client:
        assert client.check() == SERVING


def test_a_socket_file_on_which_somebody_serves_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "rk.sock"
    with by_hand(listen=(f"unix:{path}",)), Client(f"unix:{path}") as client:
        with pytest.raises(ServicerError) as raised:
            _servicer().listen(f"unix:{path}")
        assert str(path) in str(raised.value) and "another process serves" in str(raised.value)
        assert client.check() == SERVING


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(ServicerError, match="no socket"):
        _servicer().listen(f"unix:{path}")
    assert path.read_text() == "data"


@pytest.mark.parametrize("path", ["", "/no/such/folder/rk.sock", "/tmp/" + "x" * 200])
def test_a_path_that_cannot_be_is_one_line(path: str) -> None:
    with pytest.raises(ServicerError) as raised:
        _servicer().listen(f"unix:{path}")
    assert "\n" not in str(raised.value)
    assert "cannot listen on unix:" in str(raised.value)


def test_the_socket_file_goes_with_the_servicer(tmp_path: Path) -> None:
    path = tmp_path / "rk.sock"
    servicer = _servicer()
    servicer.listen(f"unix:{path}")
    servicer.start()
    assert path.exists()
    servicer.stop()
    del servicer
    until(lambda: not path.exists(), "the file is gone")


# -- TCP --


def test_a_port_in_use_is_one_line_that_says_what_to_do() -> None:
    with by_hand() as worker:
        with pytest.raises(ServicerError) as raised:
            _servicer().listen(worker.address)
        text = str(raised.value)
        assert worker.address in text and "in use" in text and "another port" in text
        assert worker.client.check() == SERVING


@pytest.mark.parametrize(
    "address", ["", "nonsense", "127.0.0.1:", "127.0.0.1:99999", "::1:80", "no.such.host.invalid:0"]
)
def test_an_address_that_is_none_is_one_line(address: str) -> None:
    with pytest.raises(ServicerError) as raised:
        _servicer().listen(address)
    assert "\n" not in str(raised.value) and str(raised.value).startswith("cannot listen on")


def test_ipv6_is_served_in_brackets() -> None:
    servicer = _servicer()
    try:
        port = servicer.listen("[::1]:0")
    except ServicerError as error:
        pytest.skip(f"no IPv6 here: {error}")
    servicer.start()
    servicer.state("ready")
    with Client(f"[::1]:{port}") as client:
        assert client.check() == SERVING
    servicer.stop()


def test_all_addresses_of_a_worker_are_served() -> None:
    with by_hand(listen=("127.0.0.2:0", "127.0.0.1:0")) as worker:
        assert worker.client.check() == SERVING


# -- limits --


def test_connections_past_the_limit_are_closed_and_a_place_is_free_when_one_goes() -> None:
    with by_hand(settings={"max_connections": 3}) as worker, contextlib.ExitStack() as stack:
        worker.client.check()
        for _ in range(2):
            connection = stack.enter_context(Connection(worker.address))
            assert connection.end(connection.call(GENERATE, b"")).status == 3
        with Connection(worker.address, preface=False) as refused:
            assert refused.wait_closed()
        assert worker.client.check() == SERVING
        connection.socket.close()

        def gets_in() -> bool:
            try:
                with Connection(worker.address) as another:
                    stream = another.call(GENERATE, b"")
                    return another.end(stream, 1).status == 3
            except (AssertionError, OSError):
                return False

        until(gets_in, "the place is free again")


def test_a_connection_that_says_nothing_is_closed_and_one_that_speaks_is_not() -> None:
    with by_hand(settings={"preface_seconds": 0.3}) as worker:
        speaking = Connection(worker.address)
        assert speaking.end(speaking.call(GENERATE, b"")).status == 3
        with Connection(worker.address, preface=False) as silent:
            assert silent.wait_closed()
        with Connection(worker.address, preface=False) as stammering:
            stammering.socket.sendall(b"PRI * HTTP/2.0\r\n")
            assert stammering.wait_closed()
        assert speaking.end(speaking.call(GENERATE, b"")).status == 3
        speaking.socket.close()


def test_a_burst_of_connections_is_taken_in_and_let_go() -> None:
    with by_hand() as worker:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            connections = [Connection(worker.address) for _ in range(100)]
            for connection in connections:
                stream = connection.call(GENERATE, b"")
                assert connection.end(stream).status == 3
            for connection in connections:
                connection.socket.close()
        until(lambda: len(os.listdir("/proc/self/fd")) <= before + 5, "all are let go")
        assert worker.client.check() == SERVING


# -- silence and pings --


def test_pings_as_fast_as_they_come_are_answered_and_no_strike() -> None:
    """sgl-project/sglang#19986, smg-project/smg#648, llm-d/llm-d-kv-cache#359."""
    with by_hand() as worker, Connection(worker.address) as connection:
        stream = connection.call(GENERATE, request("r").SerializeToString())
        leg = worker.engine.leg("r")
        connection.wait_events(stream, 1)
        for number in range(200):
            connection.ping(number.to_bytes(8, "big"))
        until(lambda: connection.step(1) and len(connection.pongs) == 200, "200 pongs")
        assert connection.goaway is None
        leg.finish()
        assert connection.end(stream).status == 0


@pytest.mark.timeout(240)
def test_120_s_of_silence_with_pings_every_10_s_lose_no_call(silence: Silence) -> None:
    """sgl-project/sglang#19986, smg-project/smg#648, llm-d/llm-d-kv-cache#359: GOAWAY with
    too_many_pings, and all calls of the connection lost.

    Begun with the session, looked at here: see conftest.py.
    """
    silence.look()


def test_a_client_that_pings_on_an_idle_connection_keeps_it() -> None:
    with by_hand() as worker, Connection(worker.address) as connection:
        for _ in range(3):
            connection.ping()
            until(lambda: connection.step(1) and connection.pongs, "a pong")
            connection.pongs.clear()
        assert connection.goaway is None
        assert connection.end(connection.call(GENERATE, b"")).status == 3


# -- one connection, many calls --


def test_a_thousand_calls_at_once_on_one_connection() -> None:
    with by_hand(window=2000) as worker:
        streams = [worker.generate(f"r{i}") for i in range(1000)]
        until(lambda: len(worker.engine.legs) == 1000, "all are in the engine")
        step = [(leg.handle, 0, [1], "length", 3, 1, 0) for leg in worker.engine.legs]
        worker.servicer.push(step)
        assert {stream.end(2 * GUARD_S).name for stream in streams} == {"OK"}
        worker.idle()


def test_a_client_that_connects_and_goes_in_every_moment_harms_nobody() -> None:
    with by_hand() as worker:
        stream, leg = worker.admitted("live")
        over = time.monotonic() + 1.0

        def come_and_go() -> None:
            payload = request("x").SerializeToString()
            number = 0
            while time.monotonic() < over:
                number += 1
                connection = Connection(worker.address)
                for _ in range(number % 4):
                    with contextlib.suppress(OSError):
                        connection.call(GENERATE, payload)
                connection.socket.close()

        threads = [threading.Thread(target=come_and_go) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        leg.finish()
        assert stream.end().name == "OK"
        for other in list(worker.engine.legs):
            other.finish()
        worker.idle()
        until(lambda: worker.servicer.open_calls() == 0, "all are gone")
