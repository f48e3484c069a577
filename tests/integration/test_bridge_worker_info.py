"""What a TokenSpeed worker says of itself: the right facts, JSON-safe, no secrets."""

from __future__ import annotations

import dataclasses
import enum
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from roomkeeper.workerinfo import (
    describe_server_args,
    is_secret,
    json_safe,
    shm_namespace_id,
    worker_info_from,
)


class Mode(enum.Enum):
    FAST = "fast"
    ODD = (1, 2)


@dataclasses.dataclass
class Nested:
    depth: int = 2
    api_key: str = "sk-1"


@dataclasses.dataclass
class Args:
    model: str = "/models/m"
    tokenizer: str = "/models/t"
    served_model_name: str | None = None
    disaggregation_mode: str = "decode"
    max_num_seqs: int | None = 8
    max_running_requests: int | None = 99
    weight_version: str = "v1"
    page_size: int = 16
    hf_token: str = "hf-1"
    rl_control_api_key: str = "k"
    store: str = "redis://user:secret@host/0"
    eos_token_id: int = 2
    nested: Nested = dataclasses.field(default_factory=Nested)
    mapping: Any = dataclasses.field(
        default_factory=lambda: SimpleNamespace(attn=SimpleNamespace(dp_size=2))
    )
    reasoning_parser: str | None = "qwen3"
    grammar_backend: str | None = None


def llm(args: Any) -> SimpleNamespace:
    hf_config = SimpleNamespace(
        model_type="llama", architectures=["A"], eos_token_id=[2, 3], pad_token_id=None
    )
    model = SimpleNamespace(hf_config=hf_config, vocab_size=512, dtype="torch.bfloat16")
    return SimpleNamespace(
        server_args=args, model_config=model, context_len=2048, max_req_input_len=None
    )


def test_the_worker_is_read_off_its_engine() -> None:
    args = Args()
    ready = {"max_total_num_tokens": 4096, "max_req_input_len": 2000, "status": "ready"}
    info = worker_info_from(args, llm(args), ready, skip_warmup=True)
    assert (info.role, info.ranks, info.window) == ("decode", 2, 8)
    assert (info.kv_tokens, info.page_tokens) == (4096, 16)
    assert (info.vocab_size, info.max_context, info.max_req_input_len) == (512, 2048, 2000)
    assert (info.model_path, info.tokenizer_path) == ("/models/m", "/models/t")
    assert info.served_model_name == "/models/m"
    assert (info.eos_token_ids, info.pad_token_id) == ([2, 3], 0)
    assert (info.model_dtype, info.weight_version) == ("bfloat16", "v1")
    assert info.skip_warmup
    assert info.scheduler_info["status"] == "ready"
    assert info.scheduler_info["shm_namespace_id"] == shm_namespace_id()
    assert info.server_args["dp_size"] == 2
    assert info.server_args["max_num_seqs"] == 8


def test_the_window_falls_back_and_may_be_unknown() -> None:
    args = Args(max_num_seqs=None)
    assert worker_info_from(args, llm(args)).window == 99
    args = Args(max_num_seqs=None, max_running_requests=None)
    assert worker_info_from(args, llm(args)).window == 0


def test_an_engine_that_says_little_is_described_by_what_it_says() -> None:
    info = worker_info_from(SimpleNamespace(model_path="/old"), SimpleNamespace())
    assert (info.role, info.ranks, info.window, info.kv_tokens) == ("null", 1, 0, 0)
    assert info.model_path == "/old"


def test_a_role_that_is_none_is_refused() -> None:
    args = Args(disaggregation_mode="encoder")
    with pytest.raises(ValueError, match="disaggregation_mode is 'encoder'"):
        worker_info_from(args, llm(args))


def test_no_secret_leaves_and_nothing_else_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMG_PAIRING_PROTOCOL", " pair-1 ")
    described = describe_server_args(Args())
    text = json.dumps(described)
    for secret in ("hf-1", "sk-1", "user:secret", "api_key"):
        assert secret not in text
    assert described["eos_token_id"] == 2
    assert described["nested"] == {"depth": 2}
    assert described["store"] == "redis://<redacted>@host/0"
    assert described["pairing_protocol"] == "pair-1"
    assert described["engine_reasoning_parser"] == "qwen3"
    assert "grammar_backend" not in described


def test_rl_labels_are_the_engines_and_a_failing_probe_costs_only_these(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {"rl.control_url": "http://h:1", "rl.pause": "true"}
    engine = SimpleNamespace(rl_advertisement=lambda: labels)
    described = describe_server_args(Args(), engine)
    assert {key: described[key] for key in labels} == labels

    def fails() -> dict[str, str]:
        raise RuntimeError("no control plane")

    monkeypatch.setattr(logging.getLogger("roomkeeper"), "propagate", True)
    described = describe_server_args(Args(), SimpleNamespace(rl_advertisement=fails))
    assert described["eos_token_id"] == 2
    assert not [key for key in described if key.startswith("rl.")]
    assert "rl_advertisement failed" in caplog.text


@pytest.mark.parametrize(
    "key", ["token", "hf_token", "apiKey", "api_key", "MY_SECRET", "db_password", "access_key"]
)
def test_a_credential_is_known_by_its_name(key: str) -> None:
    assert is_secret(key)


@pytest.mark.parametrize("key", ["tokenizer", "eos_token_id", "max_total_num_tokens", "app_key"])
def test_what_only_sounds_like_one_stays(key: str) -> None:
    assert not is_secret(key)


def test_anything_becomes_json() -> None:
    cycle: dict[str, Any] = {"a": 1}
    cycle["self"] = cycle
    shared = [1]
    thing = SimpleNamespace(_private=1, public={"mode": Mode.FAST, "odd": Mode.ODD}, kind=Nested)
    safe = json_safe(
        {"cycle": cycle, "twice": [shared, shared], "thing": thing, 7: {1.5}, "b": b"x"}
    )
    assert json.loads(json.dumps(safe)) == {
        "cycle": {"a": 1, "self": "<cycle: dict>"},
        "twice": [[1], [1]],
        "thing": {"public": {"mode": "fast", "odd": "Mode.ODD"}, "kind": "Nested"},
        "7": [1.5],
        "b": "b'x'",
    }
