"""The stand-in as a worker that also writes down each abort its engine is given.

``python -m roomkeeper.scenario.worker --trace FILE …``, flags as for ``roomkeeper standin``: a line
with the engine's id goes to ``FILE.aborts`` whenever the servicer calls ``abort_request``, for ids
that the engine does not know any more too.
"""

from __future__ import annotations

import sys
from pathlib import Path

from roomkeeper.standin import main as standin
from roomkeeper.standin.frontend import StandinLLM

MODULE = "roomkeeper.scenario.worker"


def aborts_of(trace: Path) -> Path:
    """Where the aborts are written, by the trace of the worker."""
    return trace.with_name(f"{trace.name}.aborts")


def read_aborts(trace: Path) -> list[str]:
    """The ids in the order of the calls."""
    path = aborts_of(trace)
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def main() -> int:
    """The stand-in's exit code."""
    abort = StandinLLM.abort_request

    def counted(self: StandinLLM, rid: str) -> None:
        with aborts_of(Path(self.server_args.trace)).open("a", encoding="utf-8") as file:
            file.write(f"{rid}\n")
        abort(self, rid)

    StandinLLM.abort_request = counted  # type: ignore[method-assign]
    return standin.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
