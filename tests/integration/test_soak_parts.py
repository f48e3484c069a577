"""What the soak in bench says of what it has seen: growth, leftovers and lost requests are complaints."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "bench"))

from soaking.picture import svg  # noqa: E402
from soaking.verdict import Account, complaints, of_ledger, thirds  # noqa: E402
from soaking.workers import Look, Metrics  # noqa: E402


def looks(seconds: int = 600, **per_s: float) -> list[Look]:
    """One every two seconds; what is named grows by so much a second."""
    return [
        Look(
            at_s=at,
            rss_mib=100 + per_s.get("rss_mib", 0) * at,
            fds=int(30 + per_s.get("fds", 0) * at),
            threads=int(10 + per_s.get("threads", 0) * at),
            slots=0,
            legs=0,
            streams=0,
        )
        for at in range(0, seconds, 2)
    ]


def test_what_does_not_grow_is_flat_and_warming_up_does_not_count() -> None:
    warm = looks()
    cold = [Look(look.at_s, 20, 5, 2, 0, 0, 0) for look in warm if look.at_s < 60]
    by_name = thirds(cold + warm[len(cold) :])
    assert all(one.flat for one in by_name.values())
    assert by_name["rss_mib"].first == by_name["rss_mib"].last == 100


@pytest.mark.parametrize(("name", "per_s"), [("rss_mib", 0.2), ("fds", 0.1), ("threads", 0.02)])
def test_what_grows_is_a_complaint_that_says_what(name: str, per_s: float) -> None:
    flatness = {"decode": thirds(looks(**{name: per_s}))}
    assert [one for one, by in flatness["decode"].items() if not by.flat] == [name]
    (line,) = complaints(Account(), flatness, {}, {})
    assert line.startswith(f"decode: {name} went from ")


def test_a_short_run_is_not_judged() -> None:
    assert thirds(looks(100, rss_mib=5)) == {} == thirds([])


def test_a_request_without_an_end_is_lost_unless_its_client_was_killed() -> None:
    account = Account()
    account.take(["+ pair", "+ pair", "- pair OK", "+ slow", "- slow WRONG details"], killed=False)
    account.take(["+ pair"], killed=True)
    assert (account.lost, account.with_client) == (1, 1)
    lines = complaints(account, {}, {}, {})
    assert lines[0] == "1 requests never ended"
    assert "'WRONG': 1" in lines[1] and "slow WRONG details" in lines[1]


def test_leftovers_and_legs_without_an_end_are_complaints() -> None:
    metrics = Metrics(
        "# HELP x y\nroomkeeper_arrived_total 5\n"
        'roomkeeper_refused_total{cause="full"} 1\nroomkeeper_ended_total{cause="completed"} 3\n'
    )
    ledger = of_ledger(metrics)
    assert ledger == {"arrived": 5, "refused": 1, "ended": 3, "unaccounted": 1}
    left = {"decode": Look(1, 1, 1, 1, slots=2, legs=1, streams=0)}
    lines = complaints(Account(), {}, left, {"decode": ledger})
    assert lines == [
        "decode: 2 slots, 1 legs, 0 streams are left",
        "decode: 1 legs neither refused nor ended",
    ]


def test_the_picture_has_a_line_for_each_worker_and_a_mark_for_each_mischief() -> None:
    drawn = svg({"decode": looks(), "prefill": looks()}, [(5.0, "kill"), (6.0, "cut")], "a run")
    assert drawn.count("<polyline") == 8
    assert drawn.count('width="1" height="10"') == 2
