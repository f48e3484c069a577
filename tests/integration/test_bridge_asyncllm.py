"""The adapter between the servicer and an AsyncLLM, read both ways."""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

import bridge_support as support
from bridge_support import FakeAsyncLLM, engine_serving, message, serving, until
from roomkeeper.asyncllm import AsyncLLMEngine
from roomkeeper.engine import EngineRequest, WorkerInfo
from roomkeeper.pulse import Pulse

PATHS = ["generator", "collector"]


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def code_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as raised:
        list(call)
    return raised.value.code(), raised.value.details()


def tokens_of(call: Any) -> tuple[list[int], list[int]]:
    """What the Chunks say together, and what the Complete says."""
    chunks: list[int] = []
    complete: list[int] = []
    for response in call:
        chunks += response.chunk.token_ids
        complete += response.complete.output_ids
    return chunks, complete


def idle(worker: Any) -> bool:
    return worker.on_loop(lambda: worker.engine.live == 0 and not worker.llm.rid_to_state)


# -- generating --


@pytest.mark.parametrize("stream_output", [False, True], ids=["cumulative", "delta"])
@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_the_client_gets_the_engines_tokens(path: str, stream: bool, stream_output: bool) -> None:
    with engine_serving(FakeAsyncLLM(stream_output=stream_output), output_path=path) as worker:
        chunks, complete = tokens_of(worker.generate("r", [50], stream=stream))
        assert complete == [100, 101, 102, 103]
        assert chunks == (complete if stream else [])
        assert worker.engine.output_path == path
        until(lambda: idle(worker), "the engine and the adapter have forgotten the request")
        assert worker.llm.aborted == []


def test_many_streams_end_whole_and_leave_nothing_behind(path: str) -> None:
    with engine_serving(FakeAsyncLLM(), output_path=path) as worker:
        calls = [
            worker.generate(f"r{i}", [50], stream=True, sampling_params={"max_new_tokens": 20})
            for i in range(32)
        ]
        for call in calls:
            chunks, complete = tokens_of(call)
            assert chunks == complete == list(range(100, 120))
        until(lambda: idle(worker), "nothing is left")


def test_the_engine_gets_its_own_request_class_with_its_own_names(path: str) -> None:
    made = []

    class OwnRequest(EngineRequest):
        def __init__(self, **fields: Any) -> None:
            super().__init__(**fields)
            made.append(fields)

    with engine_serving(FakeAsyncLLM(), output_path=path, request_class=OwnRequest) as worker:
        call = worker.generate("r", [50, 51], stream=True, sampling_params={"temperature": 0.0})
        tokens_of(call)
        (fields,) = made
        assert fields["input_ids"] == [50, 51]
        assert fields["sampling_params"]["temperature"] == 0.0
        assert "bootstrap_room" not in fields
        assert "data_parallel_rank" not in fields
        assert worker.llm.seen[0].rid.startswith("r~")


def test_a_schema_is_a_structural_tag_where_the_reasoning_parser_has_one(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's own function decides; what it has no tag for stays a schema."""
    asked: list[tuple[str, Any]] = []

    def tag(parser: str, schema: Any) -> str | None:
        asked.append((parser, schema))
        return None if schema == {} else '{"format":"thought, then answer"}'

    module = types.ModuleType("tokenspeed.runtime.grammar.reasoning_structural_tag")
    module.structural_tag_for_reasoning_json_schema = tag  # type: ignore[attr-defined]
    llm = FakeAsyncLLM()
    llm.server_args.reasoning_parser = "qwen3"
    with engine_serving(llm, output_path=path) as worker:
        parents = ("tokenspeed", "tokenspeed.runtime", "tokenspeed.runtime.grammar")
        for name in parents:
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        for field, value in (
            ("json_schema", '{"type":"object"}'),
            ("json_schema", "{}"),
            ("structural_tag", '{"format":"its own"}'),
        ):
            tokens_of(worker.generate(value, [50], stream=True, sampling_params={field: value}))
        constraints = [
            {k: v for k, v in obj.sampling_params.items() if k in ("json_schema", "structural_tag")}
            for obj in llm.seen
        ]
        assert constraints == [
            {"structural_tag": '{"format":"thought, then answer"}'},
            {"json_schema": "{}"},
            {"structural_tag": '{"format":"its own"}'},
        ]
        assert asked == [("qwen3", {"type": "object"}), ("qwen3", {})]


def test_each_choice_is_an_engine_request_of_its_own(path: str) -> None:
    with engine_serving(FakeAsyncLLM(), output_path=path) as worker:
        call = worker.generate("r", [50], sampling_params={"n": 3, "sampling_seed": 7})
        completes = [r.complete for r in call if r.HasField("complete")]
        assert sorted(c.index for c in completes) == [0, 1, 2]
        assert all(list(c.output_ids) == [100, 101, 102, 103] for c in completes)
        seen = worker.llm.seen
        parent = seen[0].rid.removesuffix("-n0")
        assert [obj.rid for obj in seen] == [f"{parent}-n{i}" for i in range(3)]
        assert all("n" not in obj.sampling_params for obj in seen)
        assert [obj.sampling_params["seed"] for obj in seen] == [7, 8, 9]


def test_a_decode_leg_is_submitted_with_its_room(path: str) -> None:
    info = WorkerInfo(role="decode", window=4, model_path="m")
    with engine_serving(FakeAsyncLLM(), info, output_path=path) as worker:
        room = {"bootstrap_host": "h", "bootstrap_port": 8998, "bootstrap_room": 77}
        tokens_of(worker.generate("r", [50], kv_bootstrap_info=room))
        obj = worker.llm.seen[0]
        assert (obj.bootstrap_host, obj.bootstrap_port, obj.bootstrap_room) == ("h", 8998, 77)


def test_a_step_of_the_engine_is_one_push(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_serving(FakeAsyncLLM(step_s=0.02), output_path=path) as worker:
        worker.llm.hold = True
        sizes: list[int] = []
        push = worker.servicer.push_asyncllm
        monkeypatch.setattr(
            worker.servicer,
            "push_asyncllm",
            lambda step: (sizes.append(len(step)), push(step))[1],
        )
        calls = [worker.generate(f"r{i}", [50], stream=True) for i in range(8)]
        until(lambda: len(worker.llm.rid_to_state) == 8, "all are in the engine")
        worker.llm.hold = False
        for call in calls:
            tokens_of(call)
        assert sizes == [8, 8, 8, 8]


def test_the_collector_wakes_no_task_per_output(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_serving(FakeAsyncLLM(), output_path="collector") as worker:
        woken: list[str] = []
        wait = asyncio.Event.wait

        async def counted(event: asyncio.Event) -> Any:
            result = await wait(event)
            woken.append("")
            return result

        monkeypatch.setattr(asyncio.Event, "wait", counted)
        tokens_of(worker.generate("r", [50], stream=True, sampling_params={"max_new_tokens": 30}))
        until(lambda: idle(worker), "the request is forgotten")
        assert len(woken) == 1


def test_outputs_that_come_faster_than_they_are_read_are_not_merged_by_the_collector() -> None:
    class Doubled(FakeAsyncLLM):
        """Two equal tokens in one go: as deltas they look like a prefix of one another."""

        def _advance(self, rid: str, state: Any) -> None:
            if not state.finished:
                super()._advance(rid, state)
                if not state.finished:
                    super()._advance(rid, state)

    with engine_serving(Doubled(stream_output=True), output_path="collector") as worker:
        chunks, complete = tokens_of(worker.generate("r", [50], stream=True))
        assert chunks == complete == [100, 101, 102, 103]


# -- choosing the path --


class Older(FakeAsyncLLM):
    def make_state(self, obj: Any) -> Any:
        return _Slotted(super().make_state(obj))


class _Slotted:
    """A state whose collector cannot be exchanged."""

    __slots__ = ("_state",)

    def __init__(self, state: Any) -> None:
        object.__setattr__(self, "_state", state)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("collector", "event"):
            raise AttributeError(f"{name} cannot be set")
        setattr(self._state, name, value)


def test_auto_takes_the_collector_where_the_engine_has_one() -> None:
    with engine_serving(FakeAsyncLLM()) as worker:
        assert tokens_of(worker.generate("r", [50]))[1] == [100, 101, 102, 103]
        assert worker.engine.output_path == "collector"


def test_auto_falls_back_to_the_generator_and_loses_nothing() -> None:
    with engine_serving(Older()) as worker:
        for i in range(2):
            call = worker.generate(f"r{i}", [50], stream=True)
            assert tokens_of(call)[1] == [100, 101, 102, 103]
        assert worker.engine.output_path == "generator"


def test_a_collector_that_was_asked_for_and_is_not_there_is_said() -> None:
    with engine_serving(Older(), output_path="collector") as worker:
        code, details = code_of(worker.generate("r", [50]))
        assert code == grpc.StatusCode.INTERNAL
        assert "output_path is 'collector', but" in details
        until(lambda: idle(worker), "the request is forgotten")


def test_an_output_path_that_is_none_is_named() -> None:
    with serving() as worker:
        with pytest.raises(ValueError, match="output_path is 'fast'"):
            AsyncLLMEngine(FakeAsyncLLM(), worker.servicer, output_path="fast")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="has no rid_to_state"):
            AsyncLLMEngine(SimpleNamespace(), worker.servicer, output_path="collector")


# -- failures --


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize(
    ("first", "code", "words"),
    [
        (support.VALUE_ERROR, grpc.StatusCode.INVALID_ARGUMENT, "not to our taste"),
        (support.RUNTIME_ERROR, grpc.StatusCode.INTERNAL, "the engine tripped"),
        (support.ABORT_503, grpc.StatusCode.UNAVAILABLE, "queue is full"),
        (support.ABORT_400, grpc.StatusCode.INVALID_ARGUMENT, "bad schema"),
        (support.BAD_TOKEN, grpc.StatusCode.INTERNAL, "token_ids[0] is -1"),
        (support.NO_FINISH, grpc.StatusCode.INTERNAL, "without a finish reason"),
    ],
)
def test_a_failure_is_its_calls_own_and_is_said(
    path: str, stream: bool, first: int, code: grpc.StatusCode, words: str
) -> None:
    with engine_serving(FakeAsyncLLM(), output_path=path) as worker:
        beside = worker.generate("beside", [50], stream=True)
        got, details = code_of(worker.generate("bad", [first], stream=stream))
        assert got == code
        assert words in details
        assert tokens_of(beside)[1] == [100, 101, 102, 103]
        until(lambda: idle(worker), "nothing is left in the engine")


# -- aborts --


def test_an_abort_ends_the_stream_and_reaches_the_engine_once(path: str) -> None:
    with engine_serving(FakeAsyncLLM(), output_path=path) as worker:
        call = worker.generate("r", [support.SILENT], stream=True)
        until(lambda: worker.llm.rid_to_state, "the request is in the engine")
        abort = message("AbortRequest")(request_id="r")
        assert worker.stub.Abort(abort).success is True
        assert [r.complete.finish_reason for r in call if r.HasField("complete")] == ["abort"]
        assert worker.stub.Abort(abort).success is False
        until(lambda: idle(worker), "the request is forgotten")
        assert worker.llm.aborted == [worker.llm.seen[0].rid]


def test_a_cancel_aborts_every_choice_once(path: str) -> None:
    with engine_serving(FakeAsyncLLM(), output_path=path) as worker:
        params = {"n": 3, "max_new_tokens": 100_000}
        call = worker.generate("r", [50], stream=True, sampling_params=params)
        next(call)
        call.cancel()
        until(lambda: idle(worker), "no choice is left")
        assert sorted(worker.llm.aborted) == sorted(obj.rid for obj in worker.llm.seen)
        assert len(worker.llm.aborted) == 3


def test_a_request_that_is_aborted_before_its_task_begins_is_never_submitted(path: str) -> None:
    with engine_serving(FakeAsyncLLM(), output_path=path) as worker:
        busy = threading.Event()

        def block() -> None:
            busy.set()
            call = worker.generate("r", [50], stream=True)
            until(lambda: worker.servicer.counts()["admitted"] == 1, "it is admitted")
            call.cancel()
            until(lambda: not worker.servicer.open_calls(), "it is cancelled")

        worker.on_loop(block)
        assert busy.is_set()
        until(lambda: idle(worker), "the adapter has dealt with both")
        assert worker.llm.seen == []
        assert worker.llm.aborted == []


def test_a_finished_request_is_not_aborted_in_the_engine(path: str) -> None:
    with engine_serving(FakeAsyncLLM(), output_path=path) as worker:

        def finish_and_abort() -> None:
            """The last output is there and not yet pushed when the abort comes."""
            state = next(iter(worker.llm.rid_to_state.values()))
            state.obj.sampling_params["max_new_tokens"] = 1
            worker.llm.hold = True
            worker.llm._advance(next(iter(worker.llm.rid_to_state)), state)
            call.cancel()
            until(lambda: not worker.servicer.open_calls(), "the call is cancelled")

        worker.llm.hold = True
        call = worker.generate("r", [50], stream=True)
        until(lambda: worker.llm.rid_to_state, "the request is in the engine")
        worker.on_loop(finish_and_abort)
        until(lambda: idle(worker), "the request is forgotten")
        assert worker.llm.aborted == []


def test_outputs_after_an_abort_are_dropped(path: str) -> None:
    class Deaf(FakeAsyncLLM):
        """Goes on with what it was told to abort."""

        def abort_request(self, rid: str) -> None:
            self.aborted.append(rid)

    with engine_serving(Deaf(), output_path=path) as worker:
        params = {"max_new_tokens": 1_000_000}
        call = worker.generate("r", [50], stream=True, sampling_params=params)
        next(call)
        call.cancel()
        until(lambda: worker.llm.aborted, "the engine is told")
        steps = worker.llm.steps
        until(lambda: worker.llm.steps > steps + 5, "the engine goes on")
        assert worker.engine.live == 0
        assert tokens_of(worker.generate("s", [50]))[1] == [100, 101, 102, 103]
        worker.on_loop(worker.llm.rid_to_state.clear)


def test_closing_the_adapter_aborts_what_is_live(path: str) -> None:
    llm = FakeAsyncLLM()
    with engine_serving(llm, output_path=path) as worker:
        call = worker.generate("r", [support.SILENT], stream=True)
        until(lambda: llm.rid_to_state, "the request is in the engine")
        worker.on_loop(worker.engine.close)
        worker.on_loop(worker.engine.close)
        assert llm.aborted == [llm.seen[0].rid]
        call.cancel()


def test_an_adapter_starts_once() -> None:
    with engine_serving(FakeAsyncLLM()) as worker, pytest.raises(RuntimeError, match="started"):
        worker.on_loop(worker.engine.start)


# -- questions --


def _pause_waiters(worker: Any) -> list[int]:
    waiting: list[int] = worker.engine._questions._kinds["is_paused"]._waiting
    return waiting


def test_the_pause_is_asked_once_at_a_time_and_never_withdrawn() -> None:
    class Slow(FakeAsyncLLM):
        asked = cancelled = 0
        answer: asyncio.Event

        async def is_scheduler_paused(self) -> bool:
            self.asked += 1
            self.answer = asyncio.Event()
            try:
                await self.answer.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            return True

    with engine_serving(Slow()) as worker:
        ask = message("GetServerInfoRequest")()
        gone = worker.stub.GetServerInfo.future(ask, timeout=0.2)
        with pytest.raises(grpc.RpcError):
            gone.result()
        waiting = [worker.stub.GetServerInfo.future(ask) for _ in range(3)]
        until(lambda: worker.on_loop(lambda: len(_pause_waiters(worker)) >= 4), "three more ask")
        worker.on_loop(worker.llm.answer.set)
        assert [call.result(10).is_paused for call in waiting] == [True, True, True]
        assert (worker.llm.asked, worker.llm.cancelled) == (1, 0)


def test_a_failing_question_costs_the_one_field() -> None:
    class Broken(FakeAsyncLLM):
        async def is_scheduler_paused(self) -> bool:
            raise RuntimeError("no pause controller")

    with engine_serving(Broken()) as worker:
        ask = message("GetServerInfoRequest")()
        assert worker.stub.GetServerInfo(ask).is_paused is False


def test_warm_up_generates_one_token_and_a_silent_engine_fails_it() -> None:
    with engine_serving(FakeAsyncLLM()) as worker:
        assert worker.run(worker.engine.warm_up(10)) is True
        worker.llm.hold = True
        assert worker.run(worker.engine.warm_up(0.1)) is False
        until(lambda: idle(worker), "the probe is forgotten")
        assert len(worker.llm.aborted) == 1


def test_warm_up_fails_when_the_engine_does(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(FakeAsyncLLM):
        async def generate_request(self, obj: Any) -> Any:
            raise RuntimeError("out of memory")
            yield  # pragma: no cover

    with engine_serving(Broken()) as worker:
        assert worker.run(worker.engine.warm_up(10)) is False


def test_a_worker_of_a_pair_cannot_be_warmed_up_alone() -> None:
    info = WorkerInfo(role="decode", window=4, model_path="m")
    with (
        engine_serving(FakeAsyncLLM(), info) as worker,
        pytest.raises(RuntimeError, match="a decode worker generates nothing without its peer"),
    ):
        worker.run(worker.engine.warm_up(1))


# -- reports --


def snapshot(sequence: int = 1, **fields: int) -> SimpleNamespace:
    numbers = {
        "num_running_reqs": 3,
        "num_waiting_reqs": 2,
        "num_used_pages": 50,
        "num_active_pages": 25,
        "max_total_pages": 100,
    }
    return SimpleNamespace(dp_rank=0, epoch="e", sequence=sequence, **{**numbers, **fields})


class Store:
    def __init__(self, *snapshots: SimpleNamespace) -> None:
        self.snapshots = list(snapshots)

    def fresh_snapshots(self) -> list[SimpleNamespace]:
        return self.snapshots


def test_snapshots_are_reported_as_shares_of_the_token_budget() -> None:
    llm = FakeAsyncLLM()
    llm.load_snapshot_store = Store(snapshot())  # type: ignore[attr-defined]
    with engine_serving(llm, WorkerInfo(kv_tokens=1600)) as worker:
        ask = message("GetLoadsRequest")()
        load = until(
            lambda: next((x for x in worker.stub.GetLoads(ask).loads if x.num_used_tokens), None),
            "the snapshot is reported",
        )
        assert (load.num_used_tokens, load.max_total_num_tokens) == (800, 1600)
        assert (load.token_usage, load.active_token_usage) == (0.5, 0.25)


def test_an_older_engine_is_asked_for_its_load() -> None:
    class Asked(FakeAsyncLLM):
        async def get_load(self) -> list[SimpleNamespace]:
            return [SimpleNamespace(dp_rank=0, num_reqs=5, num_waiting_reqs=2, num_pages=10)]

    with engine_serving(Asked(), WorkerInfo(kv_tokens=1600, page_tokens=16)) as worker:
        ask = message("GetLoadsRequest")()
        load = until(
            lambda: next((x for x in worker.stub.GetLoads(ask).loads if x.num_used_tokens), None),
            "the load is reported",
        )
        assert (load.num_used_tokens, load.token_usage) == (160, 0.1)


def test_a_new_weight_version_is_seen_without_a_request() -> None:
    with engine_serving(FakeAsyncLLM(), WorkerInfo(model_path="m", weight_version="v0")) as worker:
        worker.llm.server_args.weight_version = "v2"
        ask = message("GetModelInfoRequest")()
        until(lambda: worker.stub.GetModelInfo(ask).weight_version == "v2", "v2 is reported")


def test_a_silent_scheduler_with_work_is_not_alive_and_an_idle_one_is() -> None:
    store = Store(snapshot(1))
    llm = SimpleNamespace(load_snapshot_store=store, last_receive_tstamp=1.0)
    pulse = Pulse(llm)
    assert pulse.alive(live=True)
    assert not pulse.alive(live=True)
    assert pulse.alive(live=False)
    assert not pulse.alive(live=True)
    store.snapshots = [snapshot(2)]
    assert pulse.alive(live=True)
    llm.last_receive_tstamp = 2.0
    assert pulse.alive(live=True)
    pulse.output()
    assert pulse.alive(live=True)
    store.snapshots = []  # they expire; that is no sign of life
    assert not pulse.alive(live=True)


def test_an_engine_without_a_heartbeat_may_be_silent() -> None:
    for llm in (
        SimpleNamespace(last_receive_tstamp=1.0),
        SimpleNamespace(load_snapshot_store=Store()),
        SimpleNamespace(load_snapshot_store=Store(SimpleNamespace(dp_rank=0))),
    ):
        pulse = Pulse(llm)
        assert pulse.alive(live=True)
        assert pulse.alive(live=True)


def test_a_scheduler_that_stops_with_work_open_is_reported_not_serving() -> None:
    llm = FakeAsyncLLM()
    store = Store(snapshot(1))
    llm.load_snapshot_store = store  # type: ignore[attr-defined]
    settings = {"stall_seconds": 0.6, "dead_seconds": 60}
    with engine_serving(llm, settings=settings) as worker:
        call = worker.generate("r", [support.SILENT], stream=True)
        until(lambda: llm.rid_to_state, "the request is in the engine")
        health = support.WIRE.stub(worker.channel, support.wire.HEALTH)
        ask = support.WIRE.message("grpc.health.v1.HealthCheckRequest")()
        llm.hold = True
        until(lambda: health.Check(ask).status == 2, "NOT_SERVING while the scheduler is silent")
        store.snapshots = [snapshot(2)]
        until(lambda: health.Check(ask).status == 1, "SERVING once it is back")
        call.cancel()


def test_a_blocked_loop_is_reported_not_serving_and_comes_back() -> None:
    settings = {"stall_seconds": 0.6, "dead_seconds": 60}
    with engine_serving(FakeAsyncLLM(), settings=settings) as worker:
        health = support.WIRE.stub(worker.channel, support.wire.HEALTH)
        ask = support.WIRE.message("grpc.health.v1.HealthCheckRequest")()
        release = threading.Event()
        worker.loop.call_soon_threadsafe(release.wait, support.GUARD_S)
        until(lambda: health.Check(ask).status == 2, "NOT_SERVING while the loop is blocked")
        release.set()
        until(lambda: health.Check(ask).status == 1, "SERVING once it runs again")
