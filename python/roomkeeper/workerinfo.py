"""What a TokenSpeed worker is, read off its arguments, its frontend and the ready report.

Lenient: an attribute that another release spells differently or lacks reads as "not known". No
import of the engine.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from roomkeeper import kvevents
from roomkeeper.engine import Role, WorkerInfo
from roomkeeper.multimodal import IMAGE, VIDEO, modalities_of

_log = logging.getLogger("roomkeeper")
#: A key that holds a credential, not one that merely counts or names tokens (eos_token_id).
_SECRET_KEY = re.compile(
    r"(^|_)token$|api_?key|(access|private|secret|encryption)_?key|secret|passw(or)?d|passphrase"
    r"|credential|auth_token|authorization",
    re.IGNORECASE,
)
#: Name and password inside a URL.
_URL_LOGIN = re.compile(r"(?<=://)[^/@\s]*@")
_CONSTRAINED_DECODING = ("requested", "always")
_DTYPES = ("bfloat16", "float16", "float32")


def worker_info_from(
    server_args: Any,
    async_llm: Any,
    scheduler_info: Mapping[str, Any] | None = None,
    *,
    skip_warmup: bool = False,
) -> WorkerInfo:
    """The worker as gateways are told of it, and as the ledger gates it.

    Raises ValueError for a role that is not known.
    """
    info = dict(scheduler_info or {})
    resolved = getattr(async_llm, "server_args", None) or server_args
    model = getattr(async_llm, "model_config", None)
    hf_config = getattr(model, "hf_config", None)
    role = _role(server_args)
    ranks = ranks_of(server_args)
    model_path = _text(server_args, "model", "model_path")
    max_context = _count(getattr(async_llm, "context_len", None))
    modalities = modalities_of(model)
    kv = kvevents.config_of(server_args)
    return WorkerInfo(
        role=role,
        ranks=ranks,
        window=running_window(server_args),
        kv_tokens=_count(info.get("max_total_num_tokens"))
        or _count(getattr(resolved, "max_total_num_tokens", None)),
        page_tokens=_count(getattr(resolved, "page_size", None))
        or _count(getattr(resolved, "block_size", None)),
        vocab_size=_count(getattr(model, "vocab_size", None)),
        max_context=max_context,
        skip_warmup=skip_warmup,
        model_path=model_path,
        tokenizer_path=_text(server_args, "tokenizer", "tokenizer_path"),
        served_model_name=_text(server_args, "served_model_name") or model_path,
        model_type=_text(hf_config, "model_type"),
        architectures=[str(name) for name in getattr(hf_config, "architectures", None) or ()],
        max_req_input_len=_count(info.get("max_req_input_len"))
        or _count(getattr(async_llm, "max_req_input_len", None)),
        eos_token_ids=_ids(getattr(hf_config, "eos_token_id", None)),
        pad_token_id=_id(getattr(hf_config, "pad_token_id", None)),
        bos_token_id=_id(getattr(hf_config, "bos_token_id", None)),
        weight_version=_text(server_args, "weight_version"),
        default_sampling_params_json=_text(server_args, "preferred_sampling_params"),
        supports_vision=IMAGE in modalities or VIDEO in modalities,
        modalities=modalities,
        model_dtype=_dtype(model),
        multimodal_encoder_dtype=_dtype(model),
        engine_version=engine_version(),
        constrained_decoding=_constrained_decoding(server_args, model),
        kv_endpoint=kv.endpoint if kv else "",
        kv_replay_endpoint=kv.replay_endpoint if kv else "",
        kv_topic=kv.topic if kv else "",
        kv_replay_batches=kv.buffer_steps if kv else 0,
        server_args=describe_server_args(server_args, async_llm, ranks),
        scheduler_info=describe_scheduler(info),
    )


def ranks_of(server_args: Any) -> int:
    """Data-parallel ranks of the attention."""
    return _count(_dig(server_args, "mapping", "attn", "dp_size")) or 1


def running_window(server_args: Any) -> int:
    """The configured window of all ranks together; 0 when there is none."""
    return _count(getattr(server_args, "max_num_seqs", None)) or _count(
        getattr(server_args, "max_running_requests", None)
    )


def engine_version() -> str:
    """TokenSpeed's version, if it is loaded."""
    return str(getattr(sys.modules.get("tokenspeed"), "__version__", "") or "unknown")


def describe_server_args(server_args: Any, async_llm: Any = None, ranks: int = 1) -> dict[str, Any]:
    """The engine's arguments with the labels gateways read from them, JSON-safe, no secrets."""
    if dataclasses.is_dataclass(server_args) and not isinstance(server_args, type):
        fields = {f.name: getattr(server_args, f.name) for f in dataclasses.fields(server_args)}
    else:
        fields = dict(getattr(server_args, "__dict__", {}))
    if ranks > 1:
        fields["dp_size"] = ranks
    pairing = os.environ.get("SMG_PAIRING_PROTOCOL", "").strip()
    if pairing:
        fields["pairing_protocol"] = pairing
    parser = getattr(server_args, "reasoning_parser", None)
    if parser and parser != "auto":
        fields["engine_reasoning_parser"] = str(parser)
    # TokenSpeed starts every grammar at the first generated token.
    fields["constrained_decoding_start"] = "first_token"
    _describe_grammar(server_args, fields)
    fields.update(_rl_labels(async_llm))
    safe = json_safe(fields)
    assert isinstance(safe, dict)
    return safe


def _rl_labels(async_llm: Any) -> dict[str, Any]:
    """The engine's ``rl.*`` labels; a probe that fails costs no more than these."""
    advertise = getattr(async_llm, "rl_advertisement", None)
    if not callable(advertise):
        return {}
    try:
        return dict(advertise())
    except Exception:
        _log.warning("rl_advertisement failed: there are no rl.* labels", exc_info=True)
        return {}


def _describe_grammar(server_args: Any, fields: dict[str, Any]) -> None:
    """The grammar backend that runs, not the one that was typed; left out while not known."""
    backend = fields.pop("grammar_backend", None)
    if backend == "none" and getattr(server_args, "_grammar_backend_unset", False):
        needs_one = getattr(server_args, "_beam_checkpoint", None)
        backend = None if needs_one is None else ("xgrammar" if needs_one else "none")
    if backend:
        fields["grammar_backend"] = str(backend)


def describe_scheduler(scheduler_info: Mapping[str, Any]) -> dict[str, Any]:
    """The ready report, and which /dev/shm this is."""
    safe = json_safe({**scheduler_info, "shm_namespace_id": shm_namespace_id()})
    assert isinstance(safe, dict)
    return safe


def shm_namespace_id() -> str:
    """``<boot id>:<device of /dev/shm>``: equal for two processes that share it. "" if unknown."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot_id}:{Path('/dev/shm').stat().st_dev}"
    except OSError:
        return ""


def is_secret(key: str) -> bool:
    """Whether a key names a credential, which never leaves the worker."""
    return _SECRET_KEY.search(key) is not None


def json_safe(value: Any, _path: tuple[int, ...] = ()) -> Any:
    """Plain dicts, lists, strings and numbers; secrets left out, cycles cut.

    Objects with attributes become dicts, so that a secret inside is seen by its name; what has none
    becomes text.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, enum.Enum):
        return json_safe(value.value, _path) if isinstance(value.value, str | int) else str(value)
    if isinstance(value, str):
        return _URL_LOGIN.sub("<redacted>@", value)
    if id(value) in _path:
        return f"<cycle: {type(value).__name__}>"
    path = (*_path, id(value))
    if isinstance(value, Mapping):
        return _safe_items(value.items(), path)
    if isinstance(value, list | tuple | set | frozenset):
        return [json_safe(item, path) for item in value]
    if isinstance(value, type):
        return value.__name__
    if dataclasses.is_dataclass(value):
        names = (field.name for field in dataclasses.fields(value))
        return _safe_items(((name, getattr(value, name, None)) for name in names), path)
    attributes = getattr(value, "__dict__", None)
    if attributes:
        public = ((k, v) for k, v in attributes.items() if not str(k).startswith("_"))
        return _safe_items(public, path)
    return _URL_LOGIN.sub("<redacted>@", str(value))


def _safe_items(items: Iterable[tuple[Any, Any]], path: tuple[int, ...]) -> dict[str, Any]:
    return {str(k): json_safe(v, path) for k, v in list(items) if not is_secret(str(k))}


def _role(server_args: Any) -> Role:
    mode = str(getattr(server_args, "disaggregation_mode", None) or "null")
    for role in get_args(Role):
        if mode == role:
            known: Role = role
            return known
    raise ValueError(f"disaggregation_mode is {mode!r}; it must be null, prefill, decode or encode")


def _dig(value: Any, *names: str) -> Any:
    for name in names:
        value = getattr(value, name, None)
    return value


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _text(owner: Any, *names: str) -> str:
    for name in names:
        value = getattr(owner, name, None)
        if value:
            return str(value)
    return ""


def _id(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _ids(value: Any) -> list[int]:
    if isinstance(value, int) and not isinstance(value, bool):
        return [value]
    return [int(item) for item in value] if isinstance(value, list | tuple) else []


def _dtype(model: Any) -> str:
    name = str(getattr(model, "dtype", None) or "").removeprefix("torch.")
    return name if name in _DTYPES else ""


def _constrained_decoding(server_args: Any, model: Any) -> str:
    for owner in (server_args, model):
        policy = str(getattr(owner, "constrained_decoding", None) or "").strip().lower()
        if policy in _CONSTRAINED_DECODING:
            return policy
    return ""
