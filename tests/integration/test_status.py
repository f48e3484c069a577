"""``roomkeeper status``: what an operator asks a worker."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

import link_support
from roomkeeper import wire
from roomkeeper.statusread import Asker
from standin_support import (
    GUARD_S,
    StandinWorker,
    environment,
    free_bootstrap_port,
    message,
    new_room,
    run_cli,
    standin,
    until,
)


def columns(table: str, row: int) -> dict[str, str]:
    """A row of the table by its headings; there must be no empty cell in it."""
    lines = table.splitlines()
    return dict(zip(_cells(lines[0]), _cells(lines[row]), strict=True))


def _cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line.strip())


def json_of(*addresses: str) -> list[dict[str, Any]]:
    done = run_cli("status", "--json", *addresses)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_an_idle_worker_is_one_row() -> None:
    with standin("--max-num-seqs", "5") as worker:
        done = run_cli("status", worker.address)
    assert (done.returncode, done.stderr) == (0, "")
    row = columns(done.stdout, 1)
    assert row == {
        "worker": worker.address,
        "role": "null",
        "health": "SERVING",
        "engine": "ready",
        "rank": "0",
        "window": "5",
        "admitted": "-",
        "running": "0",
        "waiting": "0",
        "releasing": "0",
        "KV": row["KV"],  # until the engine has reported its load: not known
        "refused": "0",
        "stranded": "0",
    }


def test_a_full_decode_shows_who_is_admitted_who_waits_and_who_was_refused() -> None:
    flags = ("--role", "decode", "--max-num-seqs", "2", "--room-waiting", "1")
    with standin(*flags) as worker, rooms_nobody_fills(worker, 4):
        until(lambda: sum(ask_once(worker).refused.values()) == 1, "a refusal")
        row = columns(run_cli("status", worker.address).stdout, 1)
        assert (row["window"], row["admitted"], row["waiting"][0], row["refused"]) == (
            "2",
            "2",
            "1",
            "1",
        )
        (answer,) = json_of(worker.address)
        assert answer["reachable"] is True
        assert answer["ranks"][0]["admitted"] == 2
        assert answer["ranks"][0]["waiting"] == 1
        assert answer["roomkeeper"]["refused"] == {"full": 1}


def test_releasing_slots_are_shown_with_their_age() -> None:
    """Abort of a room whose KV never comes: the leg is over, the slot is not."""
    flags = ("--role", "decode", "--max-num-seqs", "2", "--room-handoff-seconds", "0.2")
    with standin(*flags) as worker:
        request = room_request(worker)
        call = worker.stub.Generate(request, timeout=GUARD_S)
        until(lambda: ask_once(worker).ranks[0].admitted == 1, "admitted")
        abort = message("AbortRequest")(request_id=request.request_id)
        assert worker.stub.Abort(abort, timeout=GUARD_S).success
        until(lambda: ask_once(worker).ranks[0].releasing == 1, "releasing")
        rank = until(
            lambda: next((r for r in ask_once(worker).ranks if r.oldest_releasing_ms), None),
            "an age",
        )
        call.cancel()
    assert rank.oldest_releasing_ms > 0


def test_each_rank_has_a_row() -> None:
    with standin("--role", "decode", "--max-num-seqs", "6", "--attention-dp-size", "2") as worker:
        done = run_cli("status", worker.address)
        (answer,) = json_of(worker.address)
    assert [rank["rank"] for rank in answer["ranks"]] == [0, 1]
    assert [rank["window"] for rank in answer["ranks"]] == [3, 3]
    assert answer["window"] == 6
    assert done.stdout.splitlines()[2].split()[:2] == ["1", "3"]
    assert "release: yes" in done.stdout


def links_of(table: str) -> dict[str, dict[str, str]]:
    """The rows of room links, which come last, by their worker."""
    head = next(n for n, line in enumerate(table.splitlines()) if "told" in line.split())
    lines = table.splitlines()[head:]
    rows = [dict(zip(_cells(lines[0]), _cells(line), strict=True)) for line in lines[1:]]
    return {row["worker"]: row for row in rows}


def test_room_links_are_shown_and_why_one_is_gone() -> None:
    with link_support.pair("--max-num-seqs", "4") as pair:
        prefill, decode = pair.prefill_worker.address, pair.decode_worker.address
        pair.serves("first")
        pair.until_linked()
        shown = run_cli("status", prefill, decode).stdout
        links = links_of(shown)
        assert f"{prefill}: link: yes, at 127.0.0.1:{pair.port + 2000}, release: yes" in shown
        assert f"{decode}: link: yes, release: yes" in shown
        row = links[decode]
        assert row["peer"] == f"127.0.0.1:{pair.port}"
        assert row["address"] == f"127.0.0.1:{pair.port + 2000}"
        assert (row["link"], row["engine"], row["release"]) == ("up", "ready", "yes")
        assert (row["refused"], row["why"]) == ("0", "-")
        assert int(row["told"]) >= 1
        assert int(row["heard"]) >= 1
        assert float(row["since"].removesuffix(" s")) < GUARD_S
        assert links[prefill]["link"] == "up"

        lost = pair.decode_leg("lost", link_support.new_room())
        until(lambda: pair.decode_side.legs("submitted") == 1, "it waits for its prefill")
        pair.prefill_worker.program.signal(signal.SIGKILL)
        assert lost.end().name == "RESOURCE_EXHAUSTED"
        until(lambda: "no prefill worker" in pair.decode_side.peer()["why"], "nobody is there")
        shown = run_cli("status", decode).stdout
        row = links_of(shown)[decode]
        assert (row["link"], row["engine"], row["release"]) == ("lost", "-", "-")
        assert row["why"] == "no prefill worker runs there"
        assert columns(shown, 1)["stranded"] == "1"
        assert f"{decode}: stranded: peer_lost 1" in shown
        (answer,) = json_of(decode)
        (peer,) = answer["roomkeeper"]["links"]["peers"]
        assert (peer["state"], peer["links"]) == ("lost", 1)


def test_the_slots_of_a_frozen_prefills_rooms_are_shown_as_releasing() -> None:
    slowly = ("--prefill-ms", "500", "--chunked-prefill-size", "16")
    with link_support.pair("--max-num-seqs", "4", *slowly) as pair:
        pair.serves("first")
        legs = pair.burst("frozen", 3, input_ids=[5] * 1600)
        until(lambda: pair.prefill_side.legs("submitted") == 3, "they are under way")
        pair.prefill_worker.program.signal(signal.SIGSTOP)
        try:
            for _, decode in legs:
                assert decode.end().name == "RESOURCE_EXHAUSTED"
            until(
                lambda: pair.decode.rooms()["ranks"][0]["oldest_releasing_ms"] >= 100, "of some age"
            )
            shown = run_cli("status", pair.decode_worker.address).stdout
        finally:
            pair.prefill_worker.program.signal(signal.SIGCONT)
        row = columns(shown, 1)
        assert row["admitted"] == "0"
        assert re.fullmatch(r"3 \(\d+\.\d s\)", row["releasing"]), row
        assert links_of(shown)[pair.decode_worker.address]["link"] == "lost"
        pair.idle()


def test_rooms_off_is_said() -> None:
    with standin("--role", "decode", "--rooms", "off") as worker:
        assert "rooms are off" in run_cli("status", worker.address).stdout


def test_a_stalled_engine_is_said() -> None:
    with standin("--step-ms", "20", "--room-stall-seconds", "0.5") as worker:
        stream = worker.stub.Generate(worker.request([7], 4000, stream=True), timeout=GUARD_S)
        next(stream)
        os.kill(worker.scheduler_pids[0], signal.SIGSTOP)
        try:
            until(lambda: ask_once(worker).engine == "stalled", "stalled")
            row = columns(run_cli("status", worker.address).stdout, 1)
        finally:
            os.kill(worker.scheduler_pids[0], signal.SIGCONT)
    assert (row["health"], row["engine"]) == ("NOT_SERVING", "stalled")


def test_an_unreachable_worker_is_one_line_and_exit_code_1_beside_one_that_answers() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # bound, not listening
        nobody = f"127.0.0.1:{probe.getsockname()[1]}"
        with standin() as worker:
            done = run_cli("status", nobody, worker.address)
            lines = run_cli("status", "--json", nobody, worker.address).stdout.splitlines()
    assert done.returncode == 1
    assert done.stderr == f"{nobody}: not reachable: Connection refused; is the worker running?\n"
    assert worker.address in done.stdout
    absent = json.loads(lines[0])
    assert (absent["address"], absent["reachable"]) == (nobody, False)
    assert json.loads(lines[1])["reachable"] is True


def test_who_does_not_answer_is_given_up_in_time() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        done = run_cli("status", "--timeout", "0.5", address)
    assert done.returncode == 1
    assert "no answer within 0.5 s" in done.stderr or "not reachable" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "no ADDRESS is given"),
        (("here",), "'here' is no address; give host:port, [IPv6]:port or unix:/path"),
        (("http://127.0.0.1:1",), "'http://127.0.0.1:1' is no address"),
        (("::1:50051",), "'::1:50051' is no address"),
        (("host:99999",), "'host:99999' is no address"),
        (("unix:",), "'unix:' has no path"),
        (("--jsn", "host:1"), "--jsn: there is no such flag; did you mean --json?"),
        (("--timeout", "0", "host:1"), "--timeout is 0; it must be from 0.01 to 3600"),
    ],
)
def test_what_cannot_be_asked_is_one_line_and_exit_code_2(
    words: tuple[str, ...], line: str
) -> None:
    done = run_cli("status", *words)
    assert done.returncode == 2
    assert line in done.stderr
    assert done.stderr.count("\n") == 1


def test_watch_asks_again_until_ctrl_c() -> None:
    with standin() as worker:
        command = [sys.executable, "-m", "roomkeeper", "status", "--json", "--watch", "0.05"]
        with subprocess.Popen(
            [*command, worker.address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        ) as child:
            guard = threading.Timer(GUARD_S, child.kill)
            guard.start()
            assert child.stdout is not None and child.stderr is not None
            for _ in range(3):
                assert json.loads(child.stdout.readline())["health"] == "SERVING"
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate()
            guard.cancel()
    assert (child.returncode, errors) == (0, "")


def test_on_a_terminal_the_table_is_redrawn() -> None:
    with standin() as worker:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "roomkeeper", "status", "--watch", "0.05", worker.address]
        with subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment()
        ) as child:
            guard = threading.Timer(GUARD_S, child.kill)
            guard.start()
            seen = b""
            while seen.count(b"\x1b[2J") < 3:
                seen += os.read(ours, 65536)
            child.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):
                os.close(theirs)
                while os.read(ours, 65536):
                    pass
            child.wait()
            guard.cancel()
        os.close(ours)
    assert child.returncode == 0
    assert worker.address.encode() in seen


def test_another_servicer_is_shown_with_what_it_says() -> None:
    with other_servicer() as address:
        done = run_cli("status", address)
        (answer,) = json_of(address)
    assert done.returncode == 0
    row = columns(done.stdout, 1)
    assert (row["role"], row["window"], row["running"], row["waiting"]) == ("decode", "8", "3", "2")
    assert row["admitted"] == row["engine"] == row["refused"] == "-"
    assert "no roomkeeper there" in done.stdout
    assert answer["roomkeeper"] is None


def test_a_server_that_is_no_worker_is_one_line() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        done = run_cli("status", f"127.0.0.1:{port}")
    finally:
        server.stop(None)
    assert done.returncode == 1
    assert "no TokenSpeed worker" in done.stderr
    assert done.stderr.count("\n") == 1


def ask_once(worker: StandinWorker) -> Any:
    asker = Asker(worker.address, GUARD_S)
    try:
        return asker.ask()
    finally:
        asker.close()


def room_request(worker: StandinWorker) -> Any:
    request = worker.request([7] * 20, 4, stream=True)
    request.kv_bootstrap_info.bootstrap_host = "127.0.0.1"
    request.kv_bootstrap_info.bootstrap_port = free_bootstrap_port()
    request.kv_bootstrap_info.bootstrap_room = new_room()
    return request


@contextlib.contextmanager
def rooms_nobody_fills(worker: StandinWorker, count: int) -> Iterator[None]:
    """Decode legs whose prefill is not there."""
    calls = [worker.stub.Generate(room_request(worker), timeout=GUARD_S) for _ in range(count)]
    try:
        yield
    finally:
        for call in calls:
            call.cancel()


@contextlib.contextmanager
def other_servicer() -> Iterator[str]:
    """A TokenSpeed worker as far as status asks, without roomkeeper and without grpc.health."""
    info = message("GetServerInfoResponse")()
    info.server_args.update({"disaggregation_mode": "decode", "max_num_seqs": 8, "model": "m"})
    loads = message("GetLoadsResponse")()
    loads.loads.add(dp_rank=0, num_running_reqs=3, num_waiting_reqs=2, max_running_requests=8)

    def handler(name: str, response: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            lambda _request, _context: response,
            request_deserializer=message(f"{name}Request").FromString,
            response_serializer=lambda made: made.SerializeToString(),
        )

    methods = {
        "GetServerInfo": handler("GetServerInfo", info),
        "GetLoads": handler("GetLoads", loads),
    }
    server = grpc.server(ThreadPoolExecutor(2))
    service = grpc.method_handlers_generic_handler(wire.TOKENSPEED, methods)
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)
