"""The stand-in's flags, with TokenSpeed's names where TokenSpeed has them.

``StandinArgs`` is the engine's ``server_args``: the servicer reads it, and GetServerInfo reports
it.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from roomkeeper import kvevents
from roomkeeper.errors import RoomkeeperError
from roomkeeper.standin.kv import PORT_OFFSET
from roomkeeper.standin.plan import PAGE_TOKENS

DEFAULT_VOCAB = 32000
DEFAULT_MODEL_LEN = 4096
#: The largest message of 32-bit token ids; longer prompts do not arrive anyway.
MODEL_LEN_MAX = 1 << 24
VOCAB_MIN = 16


class ArgumentError(RoomkeeperError, ValueError):
    """A flag that cannot be; one line."""


@dataclasses.dataclass(frozen=True)
class Attention:
    """How attention is spread over ranks."""

    dp_size: int


@dataclasses.dataclass(frozen=True)
class Mapping:
    """Named as in TokenSpeed's arguments: ``server_args.mapping.attn.dp_size``."""

    attn: Attention


@dataclasses.dataclass
class StandinArgs:
    """Resolved and checked arguments."""

    model: str
    served_model_name: str
    host: str
    port: int
    #: "null", "prefill", "decode" or "encode".
    disaggregation_mode: str
    disaggregation_bootstrap_port: int
    #: Slots of the running window, all ranks together.
    max_num_seqs: int
    #: A prompt and its output must fit.
    max_model_len: int
    #: KV tokens of a rank, a multiple of the page.
    max_total_tokens: int
    #: Prompt tokens a rank computes in one step.
    chunked_prefill_size: int
    mapping: Mapping
    #: Streams get only the new tokens, not all so far.
    stream_output: bool
    #: Output tokens of a request that does not say how many.
    tokens: int
    step_ms: float
    prefill_ms: float
    kv_ms: float
    #: Seconds.
    bootstrap_timeout: float
    transfer_timeout: float
    vocab_size: int
    #: Prompts that begin with the last token id ask for a fault.
    faults: bool
    #: Where to write what becomes of requests (see trace.py); "": nowhere.
    trace: str
    #: The model sees images and videos, and hears.
    multimodal: bool
    #: What config.json of the model directory says, as far as it is reported.
    model_config: dict[str, Any]
    #: JSON, as TokenSpeed has it; None: nothing is published.
    kv_events_config: str | None = None
    page_size: int = PAGE_TOKENS
    disaggregation_transfer_backend: str = "standin"
    weight_version: str = "default"
    skip_tokenizer_init: bool = True

    @property
    def tokenizer(self) -> str:
        """Where the tokenizer's files are; "": nowhere, the model is a name only."""
        return self.model if Path(self.model).is_dir() else ""

    @property
    def role(self) -> str:
        """Short for ``disaggregation_mode``."""
        return self.disaggregation_mode

    @property
    def ranks(self) -> int:
        """Data-parallel ranks, each with a scheduler process."""
        return self.mapping.attn.dp_size

    @property
    def rank_window(self) -> int:
        """Slots of one rank."""
        return max(1, self.max_num_seqs // self.ranks)

    @property
    def rank_pages(self) -> int:
        """KV pages of one rank."""
        return self.max_total_tokens // PAGE_TOKENS

    @property
    def chunk_tokens(self) -> int:
        """Short for ``chunked_prefill_size``."""
        return self.chunked_prefill_size


class _Parser(argparse.ArgumentParser):
    """One line for an error, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise ArgumentError(message)


def parser() -> argparse.ArgumentParser:
    """The engine's flags."""
    made = _Parser(prog="roomkeeper standin", allow_abbrev=False, add_help=False)
    add = made.add_argument
    add(
        "--role",
        "--disaggregation-mode",
        dest="role",
        choices=("null", "prefill", "decode", "encode"),
        default="null",
        help="aggregated (null), one end of a prefill/decode pair, or an encode worker that "
        "prefills ask (default: null)",
    )
    add("--host", default="127.0.0.1", help="where to listen (default: 127.0.0.1)")
    add(
        "--port", type=int, default=50051, help="where to listen; 0: any free port (default: 50051)"
    )
    add("--model", default="standin", help="a name, or a directory with config.json and tokenizer")
    add("--served-model-name", help="what gateways call the model (default: --model)")
    add("--max-num-seqs", type=int, default=32, help="the running window (default: 32)")
    add(
        "--disaggregation-bootstrap-port",
        type=int,
        default=8998,
        help=f"a prefill meets its decodes on this port + {PORT_OFFSET} (default: 8998)",
    )
    add("--max-model-len", type=int, help="tokens of prompt and output at most (default: 4096)")
    add(
        "--max-total-tokens",
        "--max-total-num-tokens",
        dest="max_total_tokens",
        type=int,
        default=65536,
        help=f"KV tokens of a rank, in pages of {PAGE_TOKENS} (default: 65536)",
    )
    add(
        "--chunked-prefill-size",
        type=int,
        default=8192,
        help="prompt tokens a step (default: 8192)",
    )
    add(
        "--attention-dp-size",
        type=int,
        default=1,
        help="data-parallel ranks, each with a share of the window; not for a prefill (default: 1)",
    )
    add("--stream-output", action="store_true", help="streams get new tokens only, not all so far")
    add(
        "--tokens",
        type=int,
        default=128,
        help="output of a request that does not say (default: 128)",
    )
    add("--step-ms", type=float, default=10, help="length of a decoding step (default: 10)")
    add("--prefill-ms", type=float, help="length of a step with prompt tokens (default: --step-ms)")
    add("--kv-ms", type=float, default=2, help="length of a KV transfer (default: 2)")
    add(
        "--bootstrap-timeout",
        type=float,
        default=120,
        help="seconds a prefill waits for a decode to admit its room (default: 120)",
    )
    add(
        "--transfer-timeout",
        type=float,
        default=300,
        help="seconds a decode that has admitted a room waits for its KV (default: 300)",
    )
    add("--vocab-size", type=int, help="token ids are below (default: config.json's, else 32000)")
    add(
        "--multimodal",
        action="store_true",
        help="the model sees images and videos and hears (an encode worker's always does)",
    )
    add("--faults", action="store_true", help="prompts may ask for faults, see docs/standin.md")
    add("--trace", default="", metavar="FILE", help="a JSON line for what becomes of each request")
    add(
        "--kv-events-config",
        metavar="JSON",
        help="publish the prefix cache's events, as TokenSpeed's flag (default: do not)",
    )
    return made


def parse(argv: Sequence[str]) -> StandinArgs:
    """Flags to arguments: fills in what was left out, and checks. ArgumentError: one line."""
    made = parser()
    given, unknown = made.parse_known_args(argv)
    if unknown:
        known = [flag for action in made._actions for flag in action.option_strings]
        near = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=1, cutoff=0.0)
        raise ArgumentError(f"{unknown[0]}: there is no such flag; did you mean {near[0]}?")
    return _resolve(given)


def _resolve(given: argparse.Namespace) -> StandinArgs:
    config = _read_model(given.model)
    limits = (
        ("port", 0, 65535),
        ("max-num-seqs", 1, 1_000_000),
        ("disaggregation-bootstrap-port", 1, 65535 - PORT_OFFSET),
        ("max-total-tokens", PAGE_TOKENS, 1 << 30),
        ("chunked-prefill-size", 1, MODEL_LEN_MAX),
        ("attention-dp-size", 1, 64),
        ("tokens", 1, MODEL_LEN_MAX),
        ("step-ms", 0, 60_000),
        ("prefill-ms", 0, 60_000),
        ("kv-ms", 0, 600_000),
        ("bootstrap-timeout", 0.001, 86_400),
        ("transfer-timeout", 0.001, 86_400),
        ("max-model-len", 2, MODEL_LEN_MAX),
        ("vocab-size", VOCAB_MIN, 1 << 31),
    )
    if given.prefill_ms is None:
        given.prefill_ms = given.step_ms
    if given.max_model_len is None:
        given.max_model_len = DEFAULT_MODEL_LEN
    if given.vocab_size is None:
        given.vocab_size = config.get("vocab_size") or DEFAULT_VOCAB
    for name, low, high in limits:
        value = getattr(given, name.replace("-", "_"))
        if not low <= value <= high:  # also for NaN
            raise ArgumentError(
                f"--{name} is {value:.15g}; it must be from {low:.15g} to {high:.15g}"
            )
    if given.role in ("prefill", "encode") and given.attention_dp_size > 1:
        raise ArgumentError(
            f"--attention-dp-size is {given.attention_dp_size}; the stand-in's {given.role} has "
            "one rank: give 1, or another --role"
        )
    try:
        kvevents.parse(given.kv_events_config or "{}")
    except ValueError as error:
        raise ArgumentError(str(error)) from error
    return StandinArgs(
        model=given.model,
        served_model_name=given.served_model_name or given.model,
        host=given.host,
        port=given.port,
        disaggregation_mode=given.role,
        disaggregation_bootstrap_port=given.disaggregation_bootstrap_port,
        max_num_seqs=given.max_num_seqs,
        max_model_len=given.max_model_len,
        max_total_tokens=given.max_total_tokens // PAGE_TOKENS * PAGE_TOKENS,
        chunked_prefill_size=given.chunked_prefill_size,
        mapping=Mapping(Attention(given.attention_dp_size)),
        stream_output=given.stream_output,
        tokens=given.tokens,
        step_ms=given.step_ms,
        prefill_ms=given.prefill_ms,
        kv_ms=given.kv_ms,
        bootstrap_timeout=given.bootstrap_timeout,
        transfer_timeout=given.transfer_timeout,
        vocab_size=given.vocab_size,
        faults=given.faults,
        multimodal=given.multimodal or given.role == "encode",
        trace=given.trace,
        model_config=config,
        kv_events_config=given.kv_events_config,
    )


def _read_model(model: str) -> dict[str, Any]:
    """The parts of config.json that are reported. A model that is only a name has none."""
    if not model:
        raise ArgumentError("--model is empty; give a name or a directory")
    directory = Path(model)
    if not directory.is_dir():
        if directory.is_absolute() or model.startswith("."):
            raise ArgumentError(f"--model is {model}; there is no such directory")
        return {}
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise ArgumentError(f"--model: {path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ArgumentError(f"--model: {path} is not a JSON object")
    size = config.get("vocab_size")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool)):
        raise ArgumentError(f"--model: {path}: vocab_size is {size!r}; it must be a whole number")
    names = ("model_type", "architectures", "eos_token_id", "bos_token_id", "pad_token_id")
    return {name: config[name] for name in (*names, "vocab_size") if name in config}
