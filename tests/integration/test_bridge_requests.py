"""Requests on their way down: from the wire to what an engine is given."""

from __future__ import annotations

import select

import pytest

from bridge_support import GUARD_S, WIRE, request, serving, until
from roomkeeper.engine import ALL_CHOICES, WorkerInfo
from roomkeeper.servicer import Abort, Query, Submission

PLAIN = {
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "ignore_eos": False,
    "no_stop_trim": False,
}


def test_a_request_arrives_with_every_field_as_the_engine_wants_it() -> None:
    with serving() as worker:
        sent_request = request(
            "all",
            [5, 6, 7],
            stream=True,
            return_logprob=True,
            logprob_start_len=0,
            top_logprobs_num=2,
            token_ids_logprob=[8, 9],
            data_parallel_rank=0,
            sampling_params={
                "temperature": 0.5,
                "top_p": 0.25,
                "top_k": 7,
                "min_p": 0.125,
                "frequency_penalty": 0.5,
                "presence_penalty": -0.5,
                "repetition_penalty": 1.5,
                "max_new_tokens": 9,
                "min_new_tokens": 2,
                "stop": ["a", "bé"],
                "stop_token_ids": [3, 4],
                "ignore_eos": True,
                "skip_special_tokens": True,
                "no_stop_trim": True,
                "logit_bias": {"17": 0.5},
                "regex": "[a-z]+",
                "sampling_seed": 2**63 - 1,
            },
        )
        custom = sent_request.sampling_params.custom_params
        custom.update({"depth": 3.0, "names": ["x", None, True]})
        call = worker.stub.Generate(sent_request, timeout=GUARD_S)
        sent = worker.take_submission()
        assert sent.request_id == "all"
        assert sent.engine_id.startswith("all~")
        assert sent.input_ids == [5, 6, 7]
        assert sent.input_ids_bytes == b"".join(i.to_bytes(4, "little") for i in (5, 6, 7))
        assert sent.input_count == 3
        assert (sent.n, sent.stream, sent.return_logprob) == (1, True, True)
        assert (sent.logprob_start_len, sent.top_logprobs_num) == (0, 2)
        assert sent.token_ids_logprob == [8, 9]
        assert sent.bootstrap is None
        assert sent.sampling == {
            **PLAIN,
            "temperature": 0.5,
            "top_p": 0.25,
            "top_k": 7,
            "min_p": 0.125,
            "frequency_penalty": 0.5,
            "presence_penalty": -0.5,
            "repetition_penalty": 1.5,
            "max_new_tokens": 9,
            "min_new_tokens": 2,
            "seed": 2**63 - 1,
            "stop": ["a", "bé"],
            "stop_token_ids": [3, 4],
            "ignore_eos": True,
            "skip_special_tokens": True,
            "no_stop_trim": True,
            "logit_bias": {"17": 0.5},
            "regex": "[a-z]+",
            "custom_params": {"depth": 3.0, "names": ["x", None, True]},
        }
        call.cancel()


def test_what_the_client_leaves_out_is_left_to_the_engine() -> None:
    with serving() as worker:
        call = worker.generate("bare", [5])
        sent = worker.take_submission()
        assert sent.sampling == PLAIN
        assert (sent.logprob_start_len, sent.top_logprobs_num) == (-1, 0)
        assert sent.token_ids_logprob is None
        call.cancel()


def test_a_zero_that_the_client_sets_is_a_zero() -> None:
    with serving() as worker:
        call = worker.generate("zero", [5], sampling_params={"temperature": 0.0, "min_p": 0.0})
        assert worker.take_submission().sampling == {**PLAIN, "temperature": 0.0, "min_p": 0.0}
        call.cancel()


@pytest.mark.parametrize(
    ("field", "key"),
    [("json_schema", "json_schema"), ("ebnf_grammar", "ebnf"), ("structural_tag",) * 2],
)
def test_a_constraint_goes_by_the_engines_name(field: str, key: str) -> None:
    with serving() as worker:
        call = worker.generate("bound", [5], sampling_params={field: "{}"})
        assert worker.take_submission().sampling == {**PLAIN, key: "{}"}
        call.cancel()


def test_every_read_of_an_attribute_gives_an_object_of_its_own() -> None:
    with serving() as worker:
        call = worker.generate("own", [5, 6])
        sent = worker.take_submission()
        sent.input_ids.append(7)
        sent.sampling["n"] = 9
        assert sent.input_ids == [5, 6]
        assert sent.sampling == PLAIN
        call.cancel()


def test_a_decode_leg_carries_its_room() -> None:
    info = WorkerInfo(role="decode", window=4, model_path="model")
    with serving(info) as worker:
        room = {
            "bootstrap_host": "10.0.0.1",
            "bootstrap_port": 8998,
            "bootstrap_room": 2**63 - 1,
        }
        call = worker.generate("leg", [5], kv_bootstrap_info=room)
        assert worker.take_submission().bootstrap == ("10.0.0.1", 8998, 2**63 - 1)
        call.cancel()


def test_the_eventfd_is_readable_from_the_first_command_until_take() -> None:
    with serving() as worker:
        descriptor = worker.servicer.fileno()
        assert select.select([descriptor], [], [], 0)[0] == []
        calls = [worker.generate(f"r{i}", [5]) for i in range(3)]
        until(lambda: worker.servicer.counts()["admitted"] == 3, "three requests are admitted")
        taken: list[object] = []
        while len(taken) < 3:
            taken += worker.take()
        assert all(isinstance(command, Submission) for command in taken)
        assert select.select([descriptor], [], [], 0)[0] == []
        assert worker.servicer.take() == []
        for call in calls:
            call.cancel()


def test_a_cancelled_call_comes_as_one_abort_of_all_choices() -> None:
    with serving() as worker:
        call = worker.generate("gone", [5], stream=True)
        handle = worker.take_submission().handle
        call.cancel()
        assert worker.take() == [Abort((handle, ALL_CHOICES))]
        worker.servicer.aborted(handle)
        until(lambda: not worker.servicer.open_calls(), "the call is over")
        assert worker.servicer.take() == []


def test_a_question_is_answered_by_its_id() -> None:
    with serving() as worker:
        paused = worker.stub.GetServerInfo.future(_info_request())
        (query,) = worker.take()
        assert isinstance(query, Query)
        assert query.kind == "is_paused"
        worker.servicer.answer(query.query_id + 1000, False)  # nobody's: ignored
        worker.servicer.answer(query.query_id, True)
        assert paused.result(10).is_paused is True


def test_a_submission_cannot_be_made_by_hand() -> None:
    with pytest.raises(TypeError):
        Submission()


def _info_request() -> object:
    return WIRE.message("tokenspeed.grpc.scheduler.GetServerInfoRequest")()


def test_a_hundred_thousand_tokens_arrive_whole() -> None:
    with serving() as worker:
        ids = list(range(100_000))
        call = worker.generate("long", ids)
        assert worker.take_submission().input_ids == ids
        call.cancel()
