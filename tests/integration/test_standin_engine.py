"""The stand-in engine alone, driven as a servicer drives an AsyncLLM."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from roomkeeper.standin import faults, tokens
from roomkeeper.standin.process import Entry
from standin_support import (
    GUARD_S,
    both_schedulers,
    ending,
    engine_request,
    launched,
    outputs_of,
    running,
    until_running,
)

VOCAB = 32000
FAST = ("--step-ms", "1")


@both_schedulers
def test_an_output_is_the_checksum_of_prompt_and_index(entry: Entry) -> None:
    with launched(*FAST, entry=entry) as engine:
        outputs = asyncio.run(outputs_of(engine, engine_request([7, 8, 9], 6)))
    assert outputs[-1]["output_ids"] == tokens.output_of([7, 8, 9], 6, VOCAB)
    assert outputs[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
    counts = [output["meta_info"]["completion_tokens"] for output in outputs]
    assert counts == [len(output["output_ids"]) for output in outputs]
    assert counts == sorted(set(counts))  # a late reader gets fewer, longer ones


def test_stream_output_makes_outputs_deltas_for_streams_only() -> None:
    async def both(engine: Any) -> tuple[list[Any], list[Any]]:
        streamed = await outputs_of(engine, engine_request([7], 4, return_logprob=True))
        whole = await outputs_of(engine, engine_request([7], 4, stream=False))
        return streamed, whole

    with launched(*FAST, "--stream-output") as engine:
        streamed, whole = asyncio.run(both(engine))
    expected = tokens.output_of([7], 4, VOCAB)
    assert [t for output in streamed for t in output["output_ids"]] == expected
    logprobs = [p for o in streamed for p in o["meta_info"]["output_token_logprobs"]]
    assert logprobs == [(tokens.logprob_at(i), token, None) for i, token in enumerate(expected)]
    assert [output["output_ids"] for output in whole] == [expected]


def test_outputs_that_nobody_takes_are_merged() -> None:
    async def slow(engine: Any) -> list[list[int]]:
        given = []
        async for output in engine.generate_request(engine_request([7], 40, return_logprob=True)):
            assert len(output["output_ids"]) == len(output["meta_info"]["output_token_logprobs"])
            given.append(output["output_ids"])
            if len(given) == 1:
                await asyncio.sleep(0.2)
        return given

    with launched(*FAST, "--stream-output") as engine:
        given = asyncio.run(slow(engine))
    assert sum(given, []) == tokens.output_of([7], 40, VOCAB)
    assert len(given) < 40


def test_a_stop_token_ends_a_request_unless_eos_is_ignored() -> None:
    stop = tokens.output_of([7], 3, VOCAB)[2]

    async def both(engine: Any) -> tuple[Any, Any]:
        sampling = {"stop_token_ids": [stop]}
        stopped = await outputs_of(engine, engine_request([7], 9, sampling=sampling))
        ignoring = {**sampling, "ignore_eos": True}
        return stopped[-1], (await outputs_of(engine, engine_request([7], 9, sampling=ignoring)))[
            -1
        ]

    with launched(*FAST) as engine:
        stopped, ignored = asyncio.run(both(engine))
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert len(stopped["output_ids"]) == 3
    assert len(ignored["output_ids"]) == 9


@both_schedulers
def test_no_more_than_the_window_run_at_once_and_all_are_served(entry: Entry) -> None:
    async def burst(engine: Any) -> int:
        most = 0
        tasks = [
            asyncio.create_task(ending(engine, engine_request([i + 3] * 40, 10))) for i in range(12)
        ]
        while not all(task.done() for task in tasks):
            most = max(most, await running(engine))
        assert {task.result() for task in tasks} == {"length"}
        return most

    with launched("--max-num-seqs", "3", "--step-ms", "3", entry=entry) as engine:
        assert asyncio.run(burst(engine)) == 3


@both_schedulers
def test_long_prompts_are_computed_in_chunks_and_requests_wait_for_pages(entry: Entry) -> None:
    """Pages for two prompts, and a window of eight: all are served all the same."""

    async def burst(engine: Any) -> list[str]:
        requests = [engine_request([i + 3] * 300, 3) for i in range(6)]
        return await asyncio.gather(*(ending(engine, request) for request in requests))

    flags = ("--max-total-tokens", "800", "--chunked-prefill-size", "64", "--max-num-seqs", "8")
    with launched(*FAST, *flags, entry=entry) as engine:
        assert asyncio.run(burst(engine)) == ["length"] * 6


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (engine_request([], 1), "input_ids is empty"),
        (engine_request([5, 32000], 1), "input_ids[1] is 32000"),
        (engine_request([5] * 200, 1), "200 tokens"),
        (engine_request([5], 0), "max_new_tokens is 0"),
        (engine_request([5], 1, sampling={"regex": "a+"}), "no grammar backend"),
        (engine_request([5], 1, sampling={"n": 2}), "n is 2"),
        (engine_request([5], 1, data_parallel_rank=1), "data_parallel_rank is 1"),
    ],
)
def test_what_does_not_fit_raises_one_line(request_: Any, words: str) -> None:
    with launched("--max-model-len", "200") as engine:
        with pytest.raises(ValueError) as raised:
            asyncio.run(outputs_of(engine, request_))
        assert not engine.rid_to_state
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_abort_forgets_the_request_wakes_nobody_and_frees_the_slot() -> None:
    async def scenario(engine: Any) -> None:
        request = engine_request([5], 4000)
        task = asyncio.create_task(outputs_of(engine, request))
        await until_running(engine, 1)
        engine.abort_request(request.rid)
        assert request.rid not in engine.rid_to_state
        engine.abort_request("an unknown id")
        await until_running(engine, 0)
        done, _ = await asyncio.wait([task], timeout=0.2)
        assert not done
        task.cancel()

    with launched("--step-ms", "5") as engine:
        asyncio.run(scenario(engine))


def test_cancelling_the_coroutine_aborts_the_request() -> None:
    async def scenario(engine: Any) -> None:
        task = asyncio.create_task(outputs_of(engine, engine_request([5], 4000)))
        await until_running(engine, 1)
        task.cancel()
        await until_running(engine, 0)

    with launched("--step-ms", "5") as engine:
        asyncio.run(scenario(engine))


def test_the_cache_is_flushed_only_while_nothing_runs_and_a_prompt_is_cached() -> None:
    async def scenario(engine: Any) -> None:
        prompt = list(range(3, 67))
        await outputs_of(engine, engine_request(prompt, 1))
        again = await outputs_of(engine, engine_request(prompt, 1))
        assert again[-1]["meta_info"]["cached_tokens"] > 0
        task = asyncio.create_task(outputs_of(engine, engine_request([5], 4000)))
        await until_running(engine, 1)
        assert not (await engine.flush_cache()).success
        task.cancel()
        await until_running(engine, 0)
        assert (await engine.flush_cache()).success
        assert await engine.is_scheduler_paused() is False

    pytest.importorskip("tokenspeed_scheduler")
    with launched(*FAST) as engine:
        asyncio.run(scenario(engine))


@both_schedulers
def test_an_id_that_the_scheduler_still_knows_ends_its_process(
    entry: Entry, capfd: pytest.CaptureFixture[str]
) -> None:
    async def scenario(engine: Any) -> None:
        first = asyncio.create_task(outputs_of(engine, engine_request([5], 4000, rid="same")))
        await until_running(engine, 1)
        again = asyncio.create_task(outputs_of(engine, engine_request([5], 4000, rid="same")))
        await asyncio.to_thread(engine.processes[0].join, GUARD_S)
        first.cancel()
        again.cancel()

    with launched("--step-ms", "5", entry=entry) as engine:
        asyncio.run(scenario(engine))
        assert engine.processes[0].exitcode == 1
    assert "the scheduler process of rank 0 ends" in capfd.readouterr().err


def test_a_scheduler_process_ends_with_its_pipe() -> None:
    with launched(*FAST) as engine:
        (process,) = engine.processes
        assert process.is_alive()
        engine.schedulers[0].end.close()
        process.join(GUARD_S)
        assert process.exitcode == 0


def test_ranks_have_their_share_of_the_window_and_a_pinned_one_is_kept() -> None:
    async def scenario(engine: Any) -> None:
        pinned = [engine_request([i + 3] * 20, 4000, data_parallel_rank=1) for i in range(3)]
        spread = engine_request([90] * 20, 4000)
        tasks = [asyncio.create_task(outputs_of(engine, r)) for r in (*pinned, spread)]
        await until_running(engine, 3)
        loads = await engine.get_load()
        assert [(load.dp_rank, load.num_reqs, load.num_waiting_reqs) for load in loads] == [
            (0, 1, 0),
            (1, 3, 1),
        ]
        for task in tasks:
            task.cancel()

    with launched("--attention-dp-size", "2", "--max-num-seqs", "5", "--step-ms", "5") as engine:
        asyncio.run(scenario(engine))


# -- faults --


def test_a_fault_prompt_is_an_ordinary_one_unless_faults_are_on() -> None:
    prompt = faults.prompt(VOCAB, faults.ABORT, 503, 0)
    with launched(*FAST) as engine:
        assert asyncio.run(ending(engine, engine_request(prompt, 3))) == "length"


@pytest.mark.parametrize("after_tokens", [0, 2])
def test_a_prompt_can_ask_for_an_abort_with_a_status(after_tokens: int) -> None:
    prompt = faults.prompt(VOCAB, faults.ABORT, 503, after_tokens)
    with launched(*FAST, "--faults") as engine:
        outputs = asyncio.run(outputs_of(engine, engine_request(prompt, 9)))
    reason = outputs[-1]["meta_info"]["finish_reason"]
    assert (reason["type"], reason["status_code"]) == ("abort", 503)
    assert len(outputs[-1]["output_ids"]) == after_tokens


def test_an_abort_with_400_is_raised() -> None:
    prompt = faults.prompt(VOCAB, faults.ABORT, 400, 0)
    with launched(*FAST, "--faults") as engine, pytest.raises(ValueError, match="asked for"):
        asyncio.run(outputs_of(engine, engine_request(prompt, 9)))


def test_a_silent_request_says_all_at_its_end() -> None:
    prompt = faults.prompt(VOCAB, faults.SILENT)
    with launched(*FAST, "--faults") as engine:
        (only,) = asyncio.run(outputs_of(engine, engine_request(prompt, 9)))
    assert only["output_ids"] == tokens.output_of(prompt, 9, VOCAB)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([31999, 77], "there is no fault 77"),
        ([31999, faults.ABORT, 503], "needs status, after_tokens"),
        ([31999, faults.HOLD_GIL, 601], "tenths of a second is 601; give one below 601"),
    ],
)
def test_a_fault_that_there_is_not_is_refused(prompt: list[int], words: str) -> None:
    with launched(*FAST, "--faults") as engine, pytest.raises(ValueError, match=words):
        asyncio.run(outputs_of(engine, engine_request(prompt, 3)))


def test_a_scheduler_that_is_stopped_sends_no_load_and_does_not_block_the_loop() -> None:
    async def scenario(engine: Any) -> None:
        while not engine.load_snapshot_store.fresh_snapshots():
            await running(engine)
        pid = engine.processes[0].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(0.2)  # what it has sent before arrives
            sequence = engine.load_snapshot_store.fresh_snapshots()[0].sequence
            # More than a socket buffer holds.
            tasks = [
                asyncio.create_task(outputs_of(engine, engine_request([5] * 4000, 1)))
                for _ in range(300)
            ]
            await asyncio.sleep(0.6)
            assert engine.load_snapshot_store.fresh_snapshots()[0].sequence == sequence
        finally:
            os.kill(pid, signal.SIGCONT)
        assert all([(await task)[-1]["output_ids"] for task in tasks])

    with launched("--step-ms", "0") as engine:
        asyncio.run(scenario(engine))
        assert engine.processes[0].is_alive()
