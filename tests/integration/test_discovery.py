"""What a worker says of itself: GetModelInfo, GetServerInfo, GetLoads."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest

import roomkeeper
from harness.byhand import HandWorker, by_hand
from harness.client import GUARD_S, failure, message, until


def _model_info(worker: HandWorker) -> Any:
    ask = message("GetModelInfoRequest")
    return worker.client.scheduler.GetModelInfo(ask, timeout=GUARD_S)


# -- GetModelInfo --


def test_model_info_has_every_field_of_the_worker() -> None:
    info: dict[str, Any] = {
        "model_path": "/models/m",
        "tokenizer_path": "/models/t",
        "served_model_name": "m",
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM", "Other"],
        "max_context": 2048,
        "max_req_input_len": 2040,
        "vocab_size": 512,
        "eos_token_ids": [2, 3],
        "pad_token_id": 1,
        "bos_token_id": 4,
        "weight_version": "v1",
        "default_sampling_params_json": '{"temperature": 0.6}',
        "supports_vision": True,
        "modalities": [1],
        "model_dtype": "bfloat16",
        "multimodal_encoder_dtype": "float16",
    }
    with by_hand(**info) as worker:
        answer = _model_info(worker)
        assert answer.model_path == "/models/m"
        assert answer.tokenizer_path == "/models/t"
        assert answer.served_model_name == "m"
        assert answer.model_type == "llama"
        assert list(answer.architectures) == ["LlamaForCausalLM", "Other"]
        assert (answer.max_context_length, answer.max_req_input_len) == (2048, 2040)
        assert answer.vocab_size == 512
        assert list(answer.eos_token_ids) == [2, 3]
        assert (answer.pad_token_id, answer.bos_token_id) == (1, 4)
        assert answer.weight_version == "v1"
        assert answer.default_sampling_params_json == '{"temperature": 0.6}'
        assert answer.supports_vision
        assert list(answer.supported_modalities) == [1]
        assert (answer.model_dtype, answer.multimodal_encoder_dtype) == ("bfloat16", "float16")


def test_a_served_model_name_is_never_empty() -> None:
    """Gateways list the model by it; an empty one makes every request 404."""
    with by_hand(model_path="/models/m", served_model_name="") as worker:
        assert _model_info(worker).served_model_name == "/models/m"


def test_the_weight_version_is_read_live() -> None:
    with by_hand(weight_version="v1") as worker:
        assert _model_info(worker).weight_version == "v1"
        worker.servicer.set_weight_version("v2")
        assert _model_info(worker).weight_version == "v2"


# -- GetServerInfo --


def test_server_info_has_arguments_window_and_the_rooms() -> None:
    args = {
        "max_num_seqs": 4,
        "nested": {"a": [1, None, True, "x"]},
        "disaggregation_mode": "decode",
    }
    scheduler = {"max_total_num_tokens": 4096, "shm_namespace_id": "boot:1"}
    info: dict[str, Any] = {
        "server_args": args,
        "scheduler_info": scheduler,
        "engine_version": "0.1.1",
        "constrained_decoding": "xgrammar",
        "kv_tokens": 4096,
    }
    before = time.time()
    with by_hand("decode", window=4, **info) as worker:
        worker.admitted("r", room=1)
        answer = worker.client.server_info()
        assert answer.server_args["max_num_seqs"] == 4
        assert list(answer.server_args["nested"]["a"]) == [1, None, True, "x"]
        assert answer.scheduler_info["shm_namespace_id"] == "boot:1"
        rooms = answer.scheduler_info["roomkeeper"]
        assert rooms["version"] == roomkeeper.__version__
        assert (rooms["role"], rooms["rooms"], rooms["link"]) == ("decode", True, True)
        assert (rooms["window"], rooms["waiting_places"]) == (4, 64)
        assert rooms["engine"]["state"] == "ready"
        assert rooms["ranks"][0]["held_slots"] == 1
        assert answer.active_requests == 1
        assert answer.tokenspeed_version == "0.1.1"
        assert answer.constrained_decoding == "xgrammar"
        assert answer.max_total_num_tokens == 4096
        assert before - 1 <= answer.start_time.seconds <= time.time()
        assert 0 <= answer.uptime_seconds < GUARD_S


def test_whether_the_engine_is_paused_is_asked_with_a_bound() -> None:
    with by_hand() as worker:
        assert not worker.client.server_info().is_paused
        worker.engine.answers["is_paused"] = True
        assert worker.client.server_info().is_paused
        worker.engine.answers["is_paused"] = None
        assert not worker.client.server_info(timeout=10).is_paused


def test_an_engine_that_is_not_up_is_not_asked() -> None:
    """Discovery must not wait for it."""
    with by_hand(ready=False) as worker:
        assert not worker.client.server_info(timeout=5).is_paused
        assert worker.engine.queries == []


def test_a_question_that_is_open_does_not_hold_up_a_stop() -> None:
    with by_hand() as worker:
        worker.engine.answers["probe"] = None
        ask = message("HealthCheckRequest")
        call = worker.client.scheduler.HealthCheck.future(ask, timeout=GUARD_S)
        until(lambda: worker.engine.queries, "the question is open")
        worker.servicer.stop()
        assert call.exception(GUARD_S) is not None or not call.result().healthy


# -- GetLoads --


def test_running_and_waiting_are_the_worker_s_own_numbers() -> None:
    with by_hand("decode", window=2) as worker:
        streams = [worker.admitted(f"r{i}", room=i + 1) for i in range(2)]
        worker.waiting("w", room=9)
        worker.servicer.loads([{"rank": 0, "running": 77, "waiting": 88}])
        (load,) = worker.client.loads().loads
        assert (load.num_running_reqs, load.num_waiting_reqs, load.num_total_reqs) == (2, 1, 3)
        assert load.max_running_requests == 2
        streams[0][1].finish()
        worker.engine.leg("w")
        (load,) = worker.client.loads().loads
        assert (load.num_running_reqs, load.num_waiting_reqs) == (2, 0)


def test_what_only_the_engine_knows_is_there_while_it_is_fresh() -> None:
    with by_hand("decode") as worker:
        assert worker.client.loads().loads[0].token_usage == 0
        assert not worker.client.loads().loads[0].HasField("active_token_usage")
        worker.servicer.loads(
            [
                {
                    "rank": 0,
                    "used_tokens": 100,
                    "max_total_tokens": 1000,
                    "token_usage": 0.1,
                    "active_token_usage": 0.05,
                    "gen_throughput": 12.5,
                    "cache_hit_rate": 0.5,
                }
            ]
        )
        (load,) = worker.client.loads().loads
        assert (load.num_used_tokens, load.max_total_num_tokens) == (100, 1000)
        assert load.token_usage == pytest.approx(0.1)
        assert load.active_token_usage == pytest.approx(0.05)
        assert load.gen_throughput == pytest.approx(12.5)
        assert load.cache_hit_rate == pytest.approx(0.5)


def test_what_is_older_than_five_seconds_is_left_out() -> None:
    with by_hand("decode") as worker:
        worker.servicer.loads([{"rank": 0, "used_tokens": 100, "token_usage": 0.1}])
        assert worker.client.loads().loads[0].num_used_tokens == 100
        until(lambda: worker.client.loads().loads[0].num_used_tokens == 0, "it is stale")
        assert worker.client.loads().loads[0].max_running_requests == 4


def test_ranks_have_their_own_numbers_and_one_that_is_not_there_has_none() -> None:
    """smg-project/smg#2429, #1630, sgl-project/sglang#32070: rank 0's numbers for every rank."""
    with by_hand("decode", window=4, ranks=2) as worker:
        worker.admitted("r", room=1, data_parallel_rank=1)
        worker.servicer.loads([{"rank": 1, "used_tokens": 50, "token_usage": 0.5}])
        answer = worker.client.loads()
        assert answer.dp_rank_count == 2
        assert [load.dp_rank for load in answer.loads] == [0, 1]
        assert [load.num_running_reqs for load in answer.loads] == [0, 1]
        assert [load.num_used_tokens for load in answer.loads] == [0, 50]
        assert answer.aggregate.total_running_reqs == 1
        (one,) = worker.client.loads(dp_rank=1).loads
        assert (one.dp_rank, one.num_running_reqs) == (1, 1)
        for unknown in (2, 99, -1):
            answer = worker.client.loads(dp_rank=unknown)
            assert list(answer.loads) == []
            assert answer.dp_rank_count == 2


@pytest.mark.parametrize("include", [[], ["core"], ["queues"], ["memory", "disagg"], ["no-such"]])
def test_the_counters_are_there_whatever_is_asked_for(include: list[str]) -> None:
    """Left out they would read as an idle worker; queues and memory this engine does not report."""
    with by_hand("decode") as worker:
        worker.admitted("r", room=1)
        load = worker.client.loads(include=include).loads[0]
        assert (load.num_running_reqs, load.max_running_requests) == (1, 4)
        assert not load.HasField("queues") and not load.HasField("memory")


def test_loads_tell_when_and_by_whom() -> None:
    with by_hand() as worker:
        answer = worker.client.loads()
        moment = datetime.datetime.fromisoformat(answer.timestamp)
        age = datetime.datetime.now(datetime.timezone.utc) - moment
        assert abs(age.total_seconds()) < GUARD_S
        assert answer.version == "tokenspeed"


def test_answers_come_while_the_worker_drains_and_none_after_it_has_stopped() -> None:
    with by_hand(window=3) as worker:
        stream, leg = worker.admitted("r")
        worker.servicer.drain()
        assert worker.client.loads().loads[0].num_running_reqs == 1
        assert _model_info(worker).served_model_name == "by-hand"
        assert worker.client.rooms()["draining"] is True
        leg.finish()
        assert stream.end().name == "OK"
        worker.servicer.stop()
        assert failure(lambda: worker.client.loads(timeout=5)).name == "UNAVAILABLE"


def test_the_window_that_is_reported_is_the_one_that_is_enforced_where_ranks_do_not_divide_it() -> (
    None
):
    with by_hand("decode", window=5, ranks=2) as worker:
        args = worker.client.server_info().server_args
        assert args["max_num_seqs"] == 4
        loads = worker.client.loads().loads
        assert [load.max_running_requests for load in loads] == [2, 2]
        assert worker.servicer.window == 4
