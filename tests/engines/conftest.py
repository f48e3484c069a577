"""Workers that several tests share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from workers import PYTHON_SERVICER, ROOMKEEPER, Worker, running, start

#: How our launcher reads the engine's outputs, and whether the engine gives them as they come (--stream-output).
MODES = [
    pytest.param("collector", False, id="collector, cumulative"),
    pytest.param("collector", True, id="collector, --stream-output"),
    pytest.param("generator", False, id="generator, cumulative"),
    pytest.param("generator", True, id="generator, --stream-output"),
]


@dataclass
class Both:
    """The same engine behind both servicers."""

    python: Worker
    roomkeeper: Worker
    stream_output: bool
    output_path: str


@pytest.fixture(scope="session")
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    """One pair of workers a mode; parametrize it with `MODES`."""
    output_path, stream_output = request.param
    folder = tmp_path_factory.mktemp("both")
    flags = ["--enable-output-logprobs", *(["--stream-output"] if stream_output else [])]
    aborts = {"TS_FAKE_ON_START": "faults:abort_as_prompted"}
    python = start(PYTHON_SERVICER, folder / "python.log", *flags, settings=aborts)
    ours = start(
        ROOMKEEPER,
        folder / "roomkeeper.log",
        *flags,
        settings={**aborts, "ROOMKEEPER_OUTPUT_PATH": output_path},
    )
    with running(python, ours):
        assert ours.lines(f"outputs by {output_path}"), (
            "the output path that was asked for is the one in use"
        )
        yield Both(python, ours, stream_output, output_path)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "both" in metafunc.fixturenames:
        modes = [pytest.param(mode.values, id=mode.id) for mode in MODES]
        metafunc.parametrize("both", modes, indirect=True, scope="session")


@pytest.fixture
def worker(tmp_path) -> Iterator:
    """Starts workers behind roomkeeper that the test may end as it likes."""
    with contextlib.ExitStack() as stack:

        def make(*flags: str, wait: bool = True, **options) -> Worker:
            made = start(
                ROOMKEEPER,
                tmp_path / f"worker-{len(list(tmp_path.iterdir()))}.log",
                *flags,
                **options,
            )
            stack.callback(made.end)
            if wait:
                made.wait_serving()
            return made

        yield make
