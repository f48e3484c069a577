"""The model of the room link speaks of what the code has, and finds the mistakes that are planted in it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "servicer/peer/model/room_link.pml"

#: Where each kind of name is defined, how it looks, and which of that look is no such name.
KINDS = {
    "leg states": ("servicer/include/roomkeeper/rooms.h", r"\bRK_LEG_\w+", {"RK_LEG_STATES"}),
    "slot states": ("servicer/include/roomkeeper/rooms.h", r"\bRK_SLOT_\w+", set()),
    "causes": ("servicer/include/roomkeeper/rooms.h", r"\bRK_CAUSE_\w+", set()),
    "effects": ("servicer/include/roomkeeper/rooms.h", r"\bRK_FX_[A-Z]\w*", {"RK_FX_TELL_"}),
    "operations": (
        "servicer/include/roomkeeper/rooms.h",
        r"\brk_ledger_\w+",
        {"rk_ledger_counts", "rk_ledger_options"},
    ),
    "timers": ("servicer/rooms/ledger.h", r"\bRK_TIMER_\w+", set()),
    "stops": ("servicer/rooms/ledger.h", r"\bRK_STOP_\w+", set()),
    "proofs": ("servicer/rooms/ledger.h", r"\bRK_(?:NO_)?PROOF\b", set()),
    "peer states": ("servicer/rooms/ledger.h", r"\bRK_PEER_(?!IS_)[A-Z]+\b", set()),
    "peer phases": ("servicer/peer/peers.h", r"\bRK_PEER_IS_\w+", set()),
    "dial ends": ("servicer/peer/peers.h", r"\bRK_DIAL_[A-Z]+\b", set()),
    "room states": (
        "proto/roomkeeper/peer/v1/room_link.proto",
        r"\bROOM_STATE_\w+",
        {"ROOM_STATE_UNSPECIFIED"},
    ),
}


def names(path: Path, pattern: str) -> set[str]:
    return set(re.findall(pattern, path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_and_the_code_name_the_same_things(kind: str) -> None:
    source, pattern, others = KINDS[kind]
    in_code = names(ROOT / source, pattern) - others
    in_model = names(MODEL, pattern)
    assert in_code, f"{source} has no {kind}"
    assert in_code - in_model == set(), f"{kind} of the code that the model does not speak of"
    assert in_model - in_code == set(), f"{kind} of the model that the code does not have"


@pytest.mark.skipif(not shutil.which("spin"), reason="spin is not installed")
@pytest.mark.parametrize(
    ("mutant", "by"),
    [
        ("RELEASES_WITHOUT_QUIESCED", "early_release"),
        ("ENDS_A_HANDED_OFF_DECODE", "handed_off_stays"),
    ],
)
def test_a_mistake_planted_in_the_model_is_found(mutant: str, by: str) -> None:
    command = [sys.executable, str(ROOT / "scripts/model"), "--mutants", mutant]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"mutant {mutant}: found by {by}" in done.stdout
