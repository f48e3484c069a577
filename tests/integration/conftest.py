"""Fixtures of the whole session."""

from __future__ import annotations

import faulthandler
import os
import signal

import pytest

# Before grpc is loaded: its handlers for a fork wait for its own threads, now and then for ever. The
# tests fork only to start programs.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from harness.silence import Silence  # noqa: E402

faulthandler.enable()

# What was started in the background of a script ignores it, and hands that down to what it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

SILENCE_TEST = "test_120_s_of_silence"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The test of a long silence looks at the end, what it looks at has begun at the start."""
    items.sort(key=lambda item: item.name.startswith(SILENCE_TEST))


@pytest.fixture(scope="session", autouse=True)
def _silence_begun(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    """Runs beside all other tests, if it is among those asked for."""
    wanted = any(item.name.startswith(SILENCE_TEST) for item in request.session.items)
    silence = Silence() if wanted else None
    yield silence
    if silence is not None:
        silence.close()


@pytest.fixture
def silence(_silence_begun: Silence) -> Silence:
    return _silence_begun
