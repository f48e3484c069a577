"""Reads a request as the engine's input processor does: fills in, checks, refuses."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from typing import Any

from roomkeeper.engine import EngineRequest
from roomkeeper.standin.args import StandinArgs
from roomkeeper.standin.messages import Generate
from roomkeeper.standin.tokens import EOS_TOKEN, seen_of

#: A request with this host has no peer; the engine's own warm-up uses it.
FAKE_BOOTSTRAP_HOST = "2.2.2.2"
_CONSTRAINTS = ("regex", "json_schema", "ebnf", "structural_tag")
_TOP_LOGPROBS_MAX = 1024


def read_request(obj: EngineRequest, args: StandinArgs, longest: int) -> Generate:
    """The request for the scheduler. ``longest``: tokens that fit into its KV pages.

    ValueError, one line, for what cannot be served.
    """
    if not obj.rid:
        raise ValueError("the request has no rid")
    prompt = list(obj.input_ids)
    sampling = obj.sampling_params
    _check_prompt(prompt, args)
    _check_sampling(sampling)
    if not 0 <= obj.top_logprobs_num <= _TOP_LOGPROBS_MAX:
        raise ValueError(
            f"top_logprobs_num is {obj.top_logprobs_num}; it must be from 0 to {_TOP_LOGPROBS_MAX}"
        )
    wanted = sampling.get("max_new_tokens")
    wanted = args.tokens if wanted is None else int(wanted)
    if wanted < 1:
        raise ValueError(f"max_new_tokens is {wanted}; it must be at least 1")
    wanted = min(wanted, args.max_model_len - len(prompt))
    pages_for = len(prompt) + (1 if args.role == "prefill" else wanted)
    if pages_for > longest:
        raise ValueError(
            f"prompt and output are {pages_for} tokens; the KV pages hold {longest} at most"
        )
    port, room = _bootstrap(obj, args)
    seen, encoders = _look(obj, args)
    stop_tokens = set(sampling.get("stop_token_ids") or ())
    return Generate(
        rid=obj.rid,
        prompt=prompt,
        max_new_tokens=wanted,
        min_new_tokens=int(sampling.get("min_new_tokens") or 0),
        stop_tokens=frozenset()
        if sampling.get("ignore_eos")
        else frozenset({EOS_TOKEN, *stop_tokens}),
        stream=bool(obj.stream),
        bootstrap_port=port,
        room=room,
        misbehaviour=None,
        seen=seen,
        encoders=encoders,
    )


def _look(
    obj: EngineRequest, args: StandinArgs
) -> tuple[list[int | None], list[tuple[int, int, int]]]:
    """What the tower makes of the items, and where the others are fetched.

    A decode makes nothing of them: it learns with the KV what its prefill saw.
    """
    inputs = obj.precomputed_multimodal_inputs
    if inputs is None:
        return [], []
    if not args.multimodal:
        raise ValueError("there are multimodal inputs, but the model reads text: see --multimodal")
    if args.role == "decode":
        return [], []
    seen: list[int | None] = []
    encoders: list[tuple[int, int, int]] = []
    for number, item in enumerate(inputs.items):
        if item.encoder is None:
            seen.append(seen_of(item))
            continue
        if args.role != "prefill":
            raise ValueError("an item is with an encode worker; only a prefill fetches it there")
        host, port, room = item.encoder
        if not _is_this_machine(host, args.host):
            raise ValueError(
                f"the encode worker's host is {host}, not this machine; the stand-in engine meets "
                "it on 127.0.0.1 only"
            )
        seen.append(None)
        encoders.append((number, port, room))
    return seen, encoders


def _check_prompt(prompt: list[int], args: StandinArgs) -> None:
    if not prompt:
        raise ValueError("input_ids is empty")
    if len(prompt) >= args.max_model_len:
        raise ValueError(
            f"the prompt is {len(prompt)} tokens; it must be below --max-model-len, "
            f"{args.max_model_len}"
        )
    for position, token in enumerate(prompt):
        if not 0 <= token < args.vocab_size:
            raise ValueError(
                f"input_ids[{position}] is {token}; ids must be below {args.vocab_size}"
            )


def _check_sampling(sampling: Mapping[str, Any]) -> None:
    for name in _CONSTRAINTS:
        if sampling.get(name):
            raise ValueError(f"{name} is given, but the stand-in engine has no grammar backend")
    if (sampling.get("n") or 1) > 1:
        raise ValueError(f"n is {sampling['n']}; the stand-in engine takes one choice a request")


def _bootstrap(obj: EngineRequest, args: StandinArgs) -> tuple[int | None, int | None]:
    """Port and room where the peer is met; none for a request that has no peer."""
    host, port, room = obj.bootstrap_host, obj.bootstrap_port, obj.bootstrap_room
    if args.role == "null" or room is None or host == FAKE_BOOTSTRAP_HOST:
        return None, None
    if host is not None and not _is_this_machine(host, args.host):
        raise ValueError(
            f"bootstrap_host is {host}, not this machine; the stand-in engine meets its peer on "
            "127.0.0.1 only"
        )
    if port is None:
        port = args.disaggregation_bootstrap_port
    return port, room


def _is_this_machine(host: str, own_host: str) -> bool:
    """By name without asking DNS; by number, whether one could listen there."""
    if host in ("localhost", own_host, socket.gethostname()):
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True
