"""A burst wider than the window on TokenSpeed's own scheduler. incident.py measures it at full width, in more ways."""

from __future__ import annotations

import pytest

from incident import measure

PAIRS = 24
#: What a pair of 0.4 s needs of a slot, and what a slot costs that waits for a dead room: 6 s.
NEEDED_S, LOST_S = 0.5, 6.0


def test_with_the_link_no_pair_fails_and_no_slot_is_lost(tmp_path) -> None:
    result = measure("rooms-on", PAIRS, tmp_path)
    assert result["ok"] == PAIRS and result["failed"] == 0 and result["refusals"] == 0
    assert result["slot_s_a_finished_pair"] < NEEDED_S + LOST_S / 4
    assert result["window_afterwards"]["ok"] == 4


def test_without_it_pairs_fail_and_the_agent_saves_their_slots(tmp_path) -> None:
    result = measure("rooms-only", PAIRS, tmp_path)
    assert result["failed"] > 0 and result["ok"] + result["failed"] == PAIRS
    assert result["slot_s_a_finished_pair"] < NEEDED_S + LOST_S / 4
    assert result["window_afterwards"]["ok"] == 4


@pytest.mark.parametrize("run", ["rooms-only-retried", "rooms-only-strict"])
def test_a_client_that_tries_refused_pairs_again_gets_all_through_and_no_slot_is_lost(
    tmp_path, run: str
) -> None:
    result = measure(run, PAIRS, tmp_path)
    assert result["ok"] == PAIRS and result["failed"] == 0
    assert result["refusals"] > 0, "the burst was wider than the window"
    assert result["slot_s_a_finished_pair"] < NEEDED_S + LOST_S / 4
    assert result["window_afterwards"]["ok"] == 4


def test_rooms_that_lose_their_patience_in_line_cost_no_slot(tmp_path) -> None:
    result = measure("rooms-only-scaled", PAIRS, tmp_path)
    assert result["ok"] + result["failed"] == PAIRS and result["ok"] >= 4
    assert result["endings"].get("prefill INTERNAL, decode INTERNAL", 0) == 0, (
        "a dead room was admitted"
    )
    assert result["window_afterwards"]["ok"] == 4
