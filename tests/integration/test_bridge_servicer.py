"""The servicer as a Python object: its life, its numbers, its configuration, its errors."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

import roomkeeper
from bridge_support import GUARD_S, WIRE, message, serving
from roomkeeper import _bridge, wire
from roomkeeper.config import Config, flag_of, key_of_flag, keys
from roomkeeper.engine import WorkerInfo
from roomkeeper.errors import ConfigError, ServicerError
from roomkeeper.servicer import Servicer


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python code in a process of its own, with every check on."""
    paths = [str(Path(roomkeeper.__file__).parent.parent), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(code), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=4 * GUARD_S,
        check=False,
    )


# -- life --


def test_the_package_and_the_extension_have_one_version() -> None:
    assert _bridge.__version__ == roomkeeper.__version__


def test_importing_the_package_does_not_load_the_extension() -> None:
    done = run("import roomkeeper, sys; print('roomkeeper._bridge' in sys.modules)")
    assert done.stdout == "False\n"


def test_stop_may_be_called_twice_and_without_start() -> None:
    servicer = Servicer(WorkerInfo())
    servicer.stop()
    servicer.stop()
    with serving() as worker:
        worker.servicer.stop()
        worker.servicer.stop()


def test_after_stop_the_engines_side_may_still_talk() -> None:
    with serving() as worker:
        worker.servicer.stop()
        worker.servicer.push([(1, 0, [1], None, 0, 0, 0)])
        worker.servicer.aborted(1)
        worker.servicer.released(1)
        worker.servicer.beat()
        worker.servicer.loads([{"rank": 0, "running": 1}])
        worker.servicer.answer(1, None)
        assert worker.servicer.take() == []


def test_two_servicers_serve_in_one_process() -> None:
    with serving() as first, serving() as second:
        calls = [worker.generate("same", [5]) for worker in (first, second)]
        for worker, call in zip((first, second), calls, strict=True):
            handle = worker.take_submission().handle
            worker.servicer.push([(handle, 0, [9], "length", 1, 1, 0)])
            assert list(list(call)[-1].complete.output_ids) == [9]


def test_it_can_be_made_and_stopped_many_times() -> None:
    for _ in range(20):
        with serving() as worker:
            assert worker.port > 0


def test_drain_refuses_new_calls_and_wait_idle_tells_when_the_old_are_over() -> None:
    with serving() as worker:
        call = worker.generate("old", [5])
        handle = worker.take_submission().handle
        worker.servicer.drain()
        with pytest.raises(grpc.RpcError) as raised:
            list(worker.generate("new", [5]))
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        assert worker.servicer.wait_idle(0.01) is False
        worker.servicer.push([(handle, 0, [9], "length", 1, 1, 0)])
        assert list(list(call)[-1].complete.output_ids) == [9]
        assert worker.servicer.wait_idle(GUARD_S) is True


def test_stop_lets_other_threads_run() -> None:
    with serving() as worker:
        call = worker.generate("open", [5])
        worker.take_submission()
        stopper = threading.Thread(target=worker.servicer.stop)
        stopper.start()
        with pytest.raises(grpc.RpcError) as raised:
            list(call)
        stopper.join(GUARD_S)
        assert not stopper.is_alive()
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE


#: A client with a stream that stays open, in a process of its own.
CLIENT = textwrap.dedent("""
    import sys, grpc
    from bridge_support import WIRE, request, wire
    with grpc.insecure_channel("127.0.0.1:" + sys.argv[1]) as channel:
        try:
            list(WIRE.stub(channel, wire.TOKENSPEED).Generate(request("open", [5], stream=True)))
        except grpc.RpcError as error:
            print(error.code().name)
""")


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise KeyError('x')"])
def test_an_interpreter_that_ends_without_stop_ends_clean(end: str) -> None:
    code = f"""
        import select, subprocess, sys
        from roomkeeper import Servicer, WorkerInfo
        servicer = Servicer(WorkerInfo())
        port = servicer.listen("127.0.0.1:0")
        servicer.start()
        servicer.state("ready")
        client = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(port)])
        assert select.select([servicer.fileno()], [], [], 20)[0]
        held = servicer.take()
        client.returncode = 0  # it outlives us: no warning about that
        {end}
    """
    done = run(code, CLIENT)
    assert done.returncode == {"": 0, "sys.exit(3)": 3}.get(end, 1), done.stderr
    assert "Fatal" not in done.stderr
    assert done.stdout == "UNAVAILABLE\n"


def test_a_servicer_that_nobody_holds_frees_its_port() -> None:
    servicer = Servicer(WorkerInfo())
    port = servicer.listen("127.0.0.1:0")
    servicer.start()
    del servicer
    with pytest.raises(OSError), __import__("socket").create_connection(("127.0.0.1", port), 1):
        pass


needs_fork = pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""),
    reason="the address sanitizer's allocator does not survive a fork beside running threads",
)


@needs_fork
def test_a_forked_child_is_refused_and_does_no_harm() -> None:
    done = run("""
        import os, warnings
        warnings.simplefilter("ignore")
        from bridge_support import serving, wire
        with serving() as worker:
            servicer = worker.servicer
            pid = os.fork()
            if pid == 0:
                refused = 0
                calls = [
                    servicer.start, servicer.drain, servicer.stop, servicer.open_calls,
                    servicer.counts, servicer.fileno, servicer.take, servicer.beat,
                    lambda: servicer.listen("127.0.0.1:0"), lambda: servicer.wait_idle(0),
                    lambda: servicer.push([]), lambda: servicer.push_asyncllm([]),
                    lambda: servicer.aborted(1), lambda: servicer.released(1),
                    lambda: servicer.loads([]), lambda: servicer.state("ready"),
                    lambda: servicer.set_weight_version("v"), lambda: servicer.answer(1, True),
                ]
                for call in calls:
                    try:
                        call()
                    except RuntimeError as error:
                        refused += "forked child" in str(error)
                del servicer, worker.servicer
                os._exit(0 if refused == len(calls) else 1)
            _, status = os.waitpid(pid, 0)
            call = worker.generate("after", [5])
            handle = worker.take_submission().handle
            servicer.push([(handle, 0, [9], "length", 1, 1, 0)])
            print(status, list(list(call)[-1].complete.output_ids))
    """)
    assert done.stdout == "0 [9]\n", done.stderr


@needs_fork
def test_a_forked_child_that_exits_in_good_order_leaves_the_parent_alone() -> None:
    done = run("""
        import os, sys, warnings
        warnings.simplefilter("ignore")
        from roomkeeper import Servicer, WorkerInfo
        servicer = Servicer(WorkerInfo())
        servicer.listen("127.0.0.1:0")
        servicer.start()
        pid = os.fork()
        if pid == 0:
            sys.exit(0)
        print(os.waitpid(pid, 0)[1], servicer.open_calls())
    """)
    assert done.stdout == "0 0\n", done.stderr


# -- the GIL --


def test_calls_are_answered_while_a_python_thread_holds_the_gil() -> None:
    done = run("""
        import ctypes, os, subprocess, sys, threading
        from bridge_support import serving
        client = '''
        import sys, grpc
        from bridge_support import WIRE, message, request, wire
        with grpc.insecure_channel("127.0.0.1:" + sys.argv[1]) as channel:
            stub = WIRE.stub(channel, wire.TOKENSPEED)
            print("loads", stub.GetLoads(message("GetLoadsRequest")(), timeout=10).version)
            try:
                list(stub.Generate(request("bad", [])))
            except grpc.RpcError as error:
                print("refused", error.code().name)
            sys.stdout.flush()
        '''
        import textwrap
        with serving() as worker:
            child = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(client), str(worker.port)],
                stdout=subprocess.PIPE, text=True,
            )
            # poll(2) by PyDLL keeps the GIL: nothing of Python's runs until the client has ended.
            libc = ctypes.PyDLL(None)
            fd = os.pidfd_open(child.pid)
            buffer = (ctypes.c_int * 2)(fd, 1)
            assert libc.poll(buffer, 1, 15000) == 1, "the client got no answer"
            print(child.communicate()[0], end="")
    """)
    assert done.stdout == "loads tokenspeed\nrefused INVALID_ARGUMENT\n", done.stderr


# -- numbers --


def test_counts_name_every_number_of_the_ledger() -> None:
    with serving(WorkerInfo(window=4), {"gate_aggregated": True}) as worker:
        call = worker.generate("one", [5])
        worker.take_submission()
        counts = worker.servicer.counts()
        (rank,) = counts["ranks"]
        assert (rank["window"], rank["held_slots"], rank["running"]) == (4, 1, 1)
        assert (counts["arrived"], counts["admitted"], counts["open_calls"]) == (1, 1, 1)
        assert counts["legs"]["submitted"] == 1
        assert counts["refused"] == {}
        assert counts["draining"] is False
        call.cancel()


def test_loads_are_reported_and_what_is_not_known_is_left_out() -> None:
    with serving() as worker:
        worker.servicer.loads(
            [
                {
                    "rank": 0,
                    "running": 3,
                    "used_tokens": 50,
                    "max_total_tokens": 100,
                    "token_usage": 0.5,
                }
            ]
        )
        (load,) = worker.stub.GetLoads(message("GetLoadsRequest")()).loads
        assert (load.num_used_tokens, load.max_total_num_tokens, load.token_usage) == (50, 100, 0.5)
        assert not load.HasField("active_token_usage")


@pytest.mark.parametrize(
    ("load", "says"),
    [
        ({"running": 1}, "a load has no rank"),
        ({"rank": 0, "running": -1}, "running is -1; it must be 0 to 2147483647"),
        ({"rank": 0, "token_usage": float("nan")}, "token_usage is nan"),
        ({"rank": 0, "token_usage": "much"}, "must be real number"),
    ],
)
def test_a_load_that_makes_no_sense_is_named(load: Any, says: str) -> None:
    with serving() as worker, pytest.raises((ValueError, TypeError), match=says):
        worker.servicer.loads([load])


def test_a_changed_weight_version_is_reported() -> None:
    with serving(WorkerInfo(model_path="m", weight_version="v1")) as worker:
        ask = message("GetModelInfoRequest")()
        assert worker.stub.GetModelInfo(ask).weight_version == "v1"
        worker.servicer.set_weight_version("v2")
        assert worker.stub.GetModelInfo(ask).weight_version == "v2"


def test_an_engine_state_that_is_none_is_named() -> None:
    with serving() as worker, pytest.raises(ValueError, match="engine state 'asleep' is unknown"):
        worker.servicer.state("asleep")  # type: ignore[arg-type]


# -- what it is made from --


def test_the_worker_is_described_to_gateways() -> None:
    info = WorkerInfo(
        model_path="/m",
        served_model_name="name",
        model_type="llama",
        architectures=["A", "B"],
        vocab_size=512,
        max_context=2048,
        max_req_input_len=2047,
        eos_token_ids=[2, 3],
        pad_token_id=-1,
        server_args={
            "max_num_seqs": 4,
            "nested": {"list": [1, None, "x", True]},
            "nan": float("nan"),
        },
        scheduler_info={"status": "ready"},
    )
    with serving(info) as worker:
        model = worker.stub.GetModelInfo(message("GetModelInfoRequest")())
        assert (model.served_model_name, model.model_type, model.vocab_size) == (
            "name",
            "llama",
            512,
        )
        assert list(model.architectures) == ["A", "B"]
        assert list(model.eos_token_ids) == [2, 3]
        assert model.pad_token_id == -1
        answer = worker.stub.GetServerInfo.future(message("GetServerInfoRequest")())
        (query,) = worker.take()
        worker.servicer.answer(query.query_id, False)
        server = answer.result(GUARD_S)
        assert server.server_args["max_num_seqs"] == 4
        assert list(server.server_args["nested"]["list"]) == [1, None, "x", True]
        assert server.server_args["nan"] is None
        assert server.scheduler_info["status"] == "ready"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"role": "encoder"},
            "worker info: role: it is 'encoder'; it must be null, prefill, decode or encode",
        ),
        ({"ranks": 0}, "worker info: ranks: it is 0; it must be at least 1"),
        ({"window": -1}, "worker info: window: it is -1; it must be 0 to 4294967295"),
        ({"kv_tokens": 2**70}, "worker info: kv_tokens: it is 1180591620717411303424"),
        ({"model_path": 7}, "worker info: model_path: it must be a str"),
        ({"model_path": "a\0b"}, "worker info: model_path: it must not contain NUL"),
        ({"architectures": [7]}, "worker info: architectures: it must be a str"),
        ({"server_args": [1]}, "worker info: server_args: it must be a dict"),
        ({"server_args": {"x": object()}}, "worker info: server_args: <object object"),
        ({"colour": 1}, "worker info: colour: there is no such field"),
    ],
)
def test_a_field_of_the_worker_that_makes_no_sense_is_named(fields: Any, says: str) -> None:
    with pytest.raises((ValueError, TypeError)) as raised:
        _bridge.Servicer(Config().core, fields)
    assert says in str(raised.value)


def test_a_cyclic_description_is_refused_and_not_followed() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    with pytest.raises(ValueError, match="nested deeper than 100 levels"):
        Servicer(WorkerInfo(server_args=loop))


def test_a_taken_port_is_one_line_with_the_address() -> None:
    with serving() as worker:
        other = Servicer(WorkerInfo())
        with pytest.raises(ServicerError, match=f"127.0.0.1:{worker.port}") as raised:
            other.listen(f"127.0.0.1:{worker.port}")
        assert "\n" not in str(raised.value)


# -- configuration --


def test_settings_override_the_file_and_the_file_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "rooms.yaml"
    file.write_text("waiting: 5\nheld: 6\n")
    made = Config([("held", "7", "--room-held")], file)
    assert (made["waiting"], made["held"], made["announce_ms"]) == ("5", "7", "500")
    assert made.number("held") == 7
    assert made.flag("rooms") is True
    assert made.as_dict().keys() == {key.name for key in keys()}


def test_a_setting_that_is_wrong_is_one_line_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--room-held") as raised:
        Config([("held", "-1", "--room-held")])
    assert "\n" not in str(raised.value)
    with pytest.raises(ConfigError, match="waiting"):
        Config({"waitng": 1})
    file = tmp_path / "rooms.yaml"
    file.write_text("rooms: on\nheld: many\n")
    with pytest.raises(ConfigError, match=r"rooms\.yaml:2"):
        Config(path=file)
    with pytest.raises(ConfigError, match=r"missing\.yaml"):
        Config(path=tmp_path / "missing.yaml")
    with pytest.raises(KeyError):
        Config()["no such key"]


def test_every_key_has_its_flag_and_back() -> None:
    for key in keys():
        assert key_of_flag(key.flag) == key.name
        assert key.help
    assert flag_of("rooms") == "--rooms"
    assert flag_of("wait_seconds") == "--room-wait-seconds"


# -- the wire --


def test_the_wire_knows_every_service_the_server_reflects() -> None:
    for service in (wire.TOKENSPEED, wire.HEALTH, wire.REFLECTION, wire.REFLECTION_ALPHA):
        assert WIRE.services[service]
    with serving() as worker:
        health = WIRE.stub(worker.channel, wire.HEALTH)
        answer = health.Check(WIRE.message("grpc.health.v1.HealthCheckRequest")())
        assert answer.status in (1, 2)
    with pytest.raises(KeyError):
        WIRE.message("no.such.Message")
