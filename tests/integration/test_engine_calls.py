"""The calls that only the engine can carry out: FlushCache, StartProfile, StopProfile, GetTokenizer."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from bridge_support import FakeAsyncLLM, engine_serving
from harness.byhand import by_hand
from harness.client import WIRE, Client
from harness.process import standin
from roomkeeper import wire
from roomkeeper.engine import WorkerInfo
from roomkeeper.tokenizer import TokenizerArchive, build

COMMON = "smg.grpc.common."
GUARD_S = 30.0


def common(name: str, **fields: Any) -> Any:
    return WIRE.message(COMMON + name)(**fields)


def scheduler_of(worker: Any) -> Any:
    return WIRE.stub(worker.channel, wire.TOKENSPEED)


def _with_tokenizer(path: str | None) -> WorkerInfo:
    return WorkerInfo(role="null", window=4, vocab_size=1000, tokenizer_path=path or "")


def failure(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return raised.value.code(), raised.value.details()


# -- FlushCache --


class Flushing(FakeAsyncLLM):
    """Refuses so many times, then does it."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals
        self.attempts = 0

    async def flush_cache(self) -> Any:
        self.attempts += 1
        return SimpleNamespace(success=self.attempts > self.refusals)


def test_a_flush_is_tried_until_the_engine_has_retired_its_last_request() -> None:
    with engine_serving(Flushing(refusals=3)) as worker:
        answer = scheduler_of(worker).FlushCache(common("FlushCacheRequest"), timeout=GUARD_S)
        assert (answer.success, answer.message) == (True, "Cache flushed")
        assert worker.llm.attempts == 4


def test_an_engine_that_is_never_idle_is_a_refusal_in_its_time() -> None:
    with engine_serving(Flushing(refusals=10**9)) as worker:
        request = common("FlushCacheRequest", timeout_s=0.2)
        answer = scheduler_of(worker).FlushCache(request, timeout=GUARD_S)
        assert not answer.success
        assert "in flight" in answer.message


@pytest.mark.parametrize("timeout_s", [-1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(timeout_s: float) -> None:
    with by_hand() as worker:
        code, why = failure(
            lambda: worker.client.scheduler.FlushCache(
                common("FlushCacheRequest", timeout_s=timeout_s), timeout=GUARD_S
            )
        )
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "timeout_s" in why


def test_an_engine_without_the_call_says_so() -> None:
    with engine_serving(FakeAsyncLLM()) as worker:
        answer = scheduler_of(worker).FlushCache(common("FlushCacheRequest"), timeout=GUARD_S)
        assert (answer.success, answer.message) == (False, "this engine has no flush_cache")


def test_the_stand_in_flushes_when_it_is_idle() -> None:
    with standin() as worker, Client(worker.address) as client:
        assert client.scheduler.FlushCache(common("FlushCacheRequest"), timeout=GUARD_S).success
        answer = client.scheduler.StartProfile(common("StartProfileRequest"), timeout=GUARD_S)
        assert not answer.success
        assert answer.message == "the stand-in engine has no profiler"


# -- profiling --


class Profiled(FakeAsyncLLM):
    """Notes how it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[dict[str, Any]] = []
        self.stopped = 0

    async def start_profile(self, **fields: Any) -> None:
        if self.asked:
            raise RuntimeError("profiling has begun already")
        self.asked.append(fields)

    async def stop_profile(self) -> None:
        self.stopped += 1


def test_profiling_is_asked_for_as_it_was_said_and_what_was_not_is_none() -> None:
    with engine_serving(Profiled()) as worker:
        start = scheduler_of(worker).StartProfile
        request = common(
            "StartProfileRequest", output_dir="/tmp/p", num_steps=3, activities=["CPU", "GPU"]
        )
        assert start(request, timeout=GUARD_S).success
        assert worker.llm.asked == [
            {
                "output_dir": "/tmp/p",
                "start_step": None,
                "num_steps": 3,
                "activities": ["CPU", "GPU"],
                "with_stack": None,
                "record_shapes": None,
                "profile_by_stage": False,
            }
        ]
        refused = start(common("StartProfileRequest"), timeout=GUARD_S)
        assert (refused.success, refused.message) == (False, "profiling has begun already")
        assert (
            scheduler_of(worker).StopProfile(common("StopProfileRequest"), timeout=GUARD_S).success
        )
        assert worker.llm.stopped == 1


def test_a_flag_that_was_said_is_told_apart_from_one_that_was_not() -> None:
    with engine_serving(Profiled()) as worker:
        request = common(
            "StartProfileRequest", with_stack=False, start_step=0, profile_by_stage=True
        )
        assert scheduler_of(worker).StartProfile(request, timeout=GUARD_S).success
        (asked,) = worker.llm.asked
        assert (asked["with_stack"], asked["start_step"]) == (False, 0)
        assert (asked["record_shapes"], asked["profile_by_stage"]) == (None, True)


def test_an_engine_that_is_not_up_is_not_asked() -> None:
    with by_hand() as worker:
        worker.servicer.state("dead", "killed by signal 9")
        for name, request in (
            ("FlushCache", "FlushCacheRequest"),
            ("StopProfile", "StopProfileRequest"),
        ):
            call = getattr(worker.client.scheduler, name)
            code, why = failure(lambda: call(common(request), timeout=GUARD_S))  # noqa: B023
            assert code is grpc.StatusCode.UNAVAILABLE
            assert "killed by signal 9" in why
        assert worker.engine.queries == []


@pytest.mark.parametrize("method", ["FlushCache", "StartProfile", "StopProfile", "GetTokenizer"])
def test_bytes_that_are_no_message_are_refused(method: str) -> None:
    with by_hand() as worker:
        status = worker.client.raw(f"/{wire.TOKENSPEED}/{method}", b"\xff")
        assert status.name == "INVALID_ARGUMENT"


# -- GetTokenizer --


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(os.urandom(300_000))
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat.jinja").write_text("{{ messages }}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def pieces(scheduler: Any) -> list[Any]:
    return list(scheduler.GetTokenizer(common("GetTokenizerRequest"), timeout=GUARD_S))


def unpacked(received: list[Any]) -> dict[str, bytes]:
    """Checks the digest, which comes on the last piece only; the files."""
    data = b"".join(piece.data for piece in received)
    assert [bool(piece.sha256) for piece in received] == [False] * (len(received) - 1) + [True]
    assert received[-1].sha256 == hashlib.sha256(data).hexdigest()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_tokenizers_files_come_in_pieces_with_a_digest_on_the_last(model: Path) -> None:
    with engine_serving(FakeAsyncLLM(), _with_tokenizer(str(model))) as worker:
        received = pieces(scheduler_of(worker))
        assert len(received) > 4
        assert all(0 < len(piece.data) <= 64 * 1024 for piece in received)
        files = unpacked(received)
        assert set(files) == {"tokenizer.json", "tokenizer_config.json", "chat.jinja"}
        assert files["tokenizer.json"] == (model / "tokenizer.json").read_bytes()
        again = pieces(scheduler_of(worker))
        assert again[-1].sha256 == received[-1].sha256


def test_twenty_callers_at_once_get_the_same_archive(model: Path) -> None:
    with engine_serving(FakeAsyncLLM(), _with_tokenizer(str(model))) as worker:
        digests: list[str] = []

        def call() -> None:
            received = pieces(scheduler_of(worker))
            unpacked(received)
            digests.append(received[-1].sha256)

        threads = [threading.Thread(target=call) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(GUARD_S)
        assert len(digests) == 20
        assert len(set(digests)) == 1


def test_a_client_that_goes_away_in_the_middle_harms_nobody(model: Path) -> None:
    with engine_serving(FakeAsyncLLM(), _with_tokenizer(str(model))) as worker:
        stream = scheduler_of(worker).GetTokenizer(common("GetTokenizerRequest"), timeout=GUARD_S)
        next(iter(stream))
        stream.cancel()
        unpacked(pieces(scheduler_of(worker)))


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        (None, grpc.StatusCode.FAILED_PRECONDITION, "no path is configured"),
        ("/nowhere/at/all", grpc.StatusCode.NOT_FOUND, "/nowhere/at/all is not there"),
    ],
)
def test_a_tokenizer_that_is_not_there_is_said(
    path: str | None, code: grpc.StatusCode, words: str
) -> None:
    with engine_serving(FakeAsyncLLM(), _with_tokenizer(path)) as worker:
        got, why = failure(lambda: pieces(scheduler_of(worker)))
        assert got is code
        assert words in why


def archive_of(folder: Path) -> Iterator[str]:
    made = build(folder)
    with os.fdopen(made["fd"], "rb") as file, zipfile.ZipFile(file) as archive:
        yield from archive.namelist()


def test_links_that_leave_the_directory_are_not_followed(model: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("not yours")
    (model / "merges.txt").symlink_to(tmp_path / "secret")
    (model / "vocab.json").symlink_to(model / "tokenizer_config.json")
    (model / "config.json").symlink_to(model / "nothing")
    names = set(archive_of(model))
    assert "vocab.json" in names
    assert not {"merges.txt", "config.json"} & names


def test_a_hubs_cache_may_link_to_its_own_blobs(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "abc").write_text("{}")
    snapshot = tmp_path / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "tokenizer.json").symlink_to(Path("../../blobs/abc"))
    assert list(archive_of(snapshot)) == ["tokenizer.json"]


def test_a_directory_without_tokenizer_files_is_not_found_and_tried_again(tmp_path: Path) -> None:
    async def twice() -> str:
        archive = TokenizerArchive(str(tmp_path))
        with pytest.raises(FileNotFoundError):
            await archive.get()
        (tmp_path / "tokenizer.json").write_text("{}")
        return (await archive.get())["sha256"]

    assert len(asyncio.run(twice())) == 64
