"""What an engine's side and the servicer tell each other, as plain data. No extension needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict

Role = Literal["null", "prefill", "decode", "encode"]
EngineState = Literal["starting", "ready", "stalled", "dead"]

#: A choice number that means every choice of the leg.
ALL_CHOICES = 0xFFFFFFFF


@dataclasses.dataclass(frozen=True)
class WorkerInfo:
    """What the worker is; given once, when the servicer is made. Empty and 0 mean "not known"."""

    role: Role = "null"
    #: Attention data-parallel ranks, at least 1.
    ranks: int = 1
    #: Configured slots of the running window, all ranks together.
    window: int = 0
    #: KV tokens of one rank, and tokens of one KV page.
    kv_tokens: int = 0
    page_tokens: int = 0
    #: Token ids must be below; 0: not checked.
    vocab_size: int = 0
    #: A prompt must be shorter; 0: not checked.
    max_context: int = 0
    #: READY means SERVING: no warm-up stands between them.
    skip_warmup: bool = False

    # GetModelInfo
    model_path: str = ""
    tokenizer_path: str = ""
    #: Empty: the model path is reported.
    served_model_name: str = ""
    model_type: str = ""
    architectures: Sequence[str] = ()
    max_req_input_len: int = 0
    eos_token_ids: Sequence[int] = ()
    pad_token_id: int = 0
    bos_token_id: int = 0
    weight_version: str = ""
    default_sampling_params_json: str = ""
    supports_vision: bool = False
    #: Numbers of ``smg.grpc.common.Modality``.
    modalities: Sequence[int] = ()
    model_dtype: str = ""
    multimodal_encoder_dtype: str = ""

    # GetServerInfo
    engine_version: str = ""
    constrained_decoding: str = ""
    # SubscribeKvEvents
    #: Where rank 0 publishes by ZeroMQ, as the publisher has it; empty: nothing is published.
    kv_endpoint: str = ""
    kv_replay_endpoint: str = ""
    kv_topic: str = ""
    #: Batches that the publisher keeps for replays.
    kv_replay_batches: int = 0
    #: JSON-safe, secrets already taken out.
    server_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    scheduler_info: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """The fields as a dict, not copied any deeper."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


class _Rank(TypedDict):
    rank: int


class EngineLoad(_Rank, total=False):
    """What the engine reports of one rank. A key left out is not known."""

    running: int
    waiting: int
    used_tokens: int
    max_total_tokens: int
    #: 0..1: resident pages, reclaimable ones included; and pages of live requests.
    token_usage: float
    active_token_usage: float
    #: Tokens per second.
    gen_throughput: float
    #: 0..1.
    cache_hit_rate: float


@dataclasses.dataclass
class EngineRequest:
    """One engine request: what ``generate_request`` of an AsyncLLM-shaped engine is given.

    The names are those of TokenSpeed's ``GenerateReqInput``, whose place it takes where TokenSpeed
    is not installed.
    """

    input_ids: list[int]
    sampling_params: dict[str, Any]
    stream: bool = False
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: list[int] | None = None
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    bootstrap_room: int | None = None
    data_parallel_rank: int | None = None
    #: See multimodal.py.
    precomputed_multimodal_inputs: Any = None
    log_metrics: bool = True
    rid: str = ""


class AsyncLLM(Protocol):
    """The part of TokenSpeed's ``AsyncLLM`` that every engine must have.

    What else is used where it is there: ``auto_create_handle_loop()``, ``load_snapshot_store``,
    ``get_load()``, ``is_scheduler_paused()``, ``last_receive_tstamp``, ``server_args``.
    """

    #: Live requests by id. Their states have ``finished``, and for the collector path ``event``
    #: (asyncio) and ``collector`` with ``put``, ``take`` and ``has_pending``.
    rid_to_state: Any

    def generate_request(self, obj: Any) -> Any:
        """An async generator of output dicts."""

    def abort_request(self, rid: str) -> Any:
        """Forgets a request and tells the scheduler; unknown ids are ignored."""
