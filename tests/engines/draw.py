"""Draws requests: valid, at a border, and bad, for every call of the service and every field of its requests.

A case has a number, and the number alone makes it. First comes a walk: each value of `field_values.FIELDS` once, in a
request that is good otherwise. The rest are mixtures: a good request of a call, with up to two fields changed, or with
its bytes spoilt. What to draw is looked up by the names that the descriptors give, so a new message, field or call has
to be told of here before anything is drawn.
"""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as messages

from field_values import FIELDS, INT32_MAX

SEED = 20261202
MIXTURES = 500
SERVICE = messages.DESCRIPTOR.services_by_name["TokenSpeedScheduler"]
#: How often a mixture is of this call.
WEIGHTS = {
    "Generate": 80,
    "Abort": 4,
    "GetLoads": 2,
    "FlushCache": 2,
    "StartProfile": 4,
    "StopProfile": 1,
    "HealthCheck": 1,
    "GetModelInfo": 1,
    "GetServerInfo": 2,
    "GetTokenizer": 1,
    "SubscribeKvEvents": 2,
}
#: How often a good request has a field that holds a message; 1 in so many.
HOLDERS = {
    "GenerateRequest.tokenized": 1,
    "GenerateRequest.sampling_params": 1,
    "GenerateRequest.mm_inputs": 25,
    "GenerateRequest.encode_bootstrap_info": 50,
    "GenerateRequest.kv_bootstrap_info": 25,
    "EncodeBootstrapInfo.items": 1,
    "MultimodalInputs.items": 1,
    "MultimodalItem.encoder_input": 2,
    "MultimodalItem.model_specific_tensors": 4,
    "MultimodalItem.placeholders": 1,
    "TensorData.shm": 3,
    "TensorData.remote": 3,
}
#: These take the place of one another, and of what a good request has; so they are in the walk and among the changes.
_ALTERNATIVES = ("regex", "json_schema", "ebnf_grammar", "structural_tag")


@dataclass(frozen=True)
class Case:
    """One request."""

    number: int
    method: str
    request: Any
    #: What was changed in a good request.
    changed: tuple[str, ...]
    #: The bytes to send, if they are not the request's.
    spoilt: bytes | None = None

    def __str__(self) -> str:
        changed = ", ".join(self.changed) or "nothing"
        spoilt = f"bytes sent: {self.spoilt.hex()}\n" if self.spoilt is not None else ""
        return f"case {self.number}: {self.method}, changed: {changed}\n{self.request}{spoilt}"


def input_of(method: str) -> Descriptor:
    return SERVICE.methods_by_name[method].input_type


def _class_of(descriptor: Descriptor) -> Any:
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(descriptor)


def key_of(field: FieldDescriptor) -> str:
    return f"{field.containing_type.name}.{field.name}"


def holds_messages(field: FieldDescriptor) -> bool:
    """Whether one has to go on in there. A map of numbers and a Struct are values."""
    kind = field.message_type
    if kind is None or kind.full_name == "google.protobuf.Struct":
        return False
    return not kind.GetOptions().map_entry or kind.fields_by_name["value"].message_type is not None


def _inside(field: FieldDescriptor) -> Descriptor:
    kind = field.message_type
    return kind.fields_by_name["value"].message_type if kind.GetOptions().map_entry else kind


def leaves(descriptor: Descriptor, path: tuple[FieldDescriptor, ...] = ()) -> Iterator[Any]:
    """Paths to everything that has a value. Each message is entered by one way only, or by every way that differs."""
    for field in descriptor.fields:
        if holds_messages(field):
            if key_of(field) not in HOLDERS:
                raise KeyError(f"{key_of(field)} is not in draw.HOLDERS; say how often to draw it")
            yield from leaves(_inside(field), (*path, field))
        else:
            if key_of(field) not in FIELDS:
                raise KeyError(f"{key_of(field)} is not in field_values.FIELDS; say its values")
            yield (*path, field)


def _enter(owner: Any, field: FieldDescriptor) -> Any:
    """The message in that field, made if it is not there."""
    value = getattr(owner, field.name)
    if field.message_type.GetOptions().map_entry:
        return value["image_grid_thw"]
    if field.is_repeated:
        return value[0] if len(value) else value.add()
    value.SetInParent()
    return value


def _put(owner: Any, field: FieldDescriptor, value: Any) -> None:
    owner.ClearField(field.name)
    target = getattr(owner, field.name) if isinstance(value, list | dict) else None
    if isinstance(value, list):
        target.extend(value)
    elif isinstance(value, dict):
        target.update(value)
        if not value and not field.is_repeated:
            target.SetInParent()
    else:
        setattr(owner, field.name, value)


def _change(request: Any, path: tuple[FieldDescriptor, ...], value: Any) -> None:
    if callable(value):
        value(request)
        return
    owner = request
    for field in path[:-1]:
        entered = _enter(owner, field)
        if not entered.ByteSize():
            _fill(random.Random(0), entered)
        owner = entered
    _put(owner, path[-1], value)


def _fill(rng: random.Random, message: Any) -> None:
    """Good values, each there or not."""
    for field in message.DESCRIPTOR.fields:
        if holds_messages(field):
            if rng.randrange(HOLDERS[key_of(field)]) == 0:
                _fill(rng, _enter(message, field))
        elif field.name not in _ALTERNATIVES and FIELDS[key_of(field)].good:
            if not field.has_presence or rng.random() < 0.3 or message.DESCRIPTOR.name in _WHOLE:
                _put(message, field, rng.choice(FIELDS[key_of(field)].good))


#: Here a good message has all its fields.
_WHOLE = ("KvBootstrapInfo", "EncodeItemBootstrapInfo", "TensorData")


def _good(number: int, method: str, rng: random.Random, plain: bool) -> Any:
    """A request that is fine; `plain`: with nothing in it that need not be."""
    request = _class_of(input_of(method))()
    if not plain:
        _fill(rng, request)
    if method == "Generate":
        request.request_id = f"drawn-{number}"
        checksum = zlib.crc32(request.request_id.encode())
        del request.tokenized.input_ids[:]
        request.tokenized.input_ids.extend(20 + (checksum >> at) % 400 for at in range(20))
        sampling = request.sampling_params
        sampling.max_new_tokens = 4
        sampling.ignore_eos = plain or sampling.ignore_eos
        if plain:
            request.stream = rng.random() < 0.5
    return request


@functools.cache
def walk() -> list[tuple[str, tuple[FieldDescriptor, ...], Any]]:
    """Every value, good or not, once; and every call once as it is."""
    assert set(WEIGHTS) == {method.name for method in SERVICE.methods}, "draw.WEIGHTS has each call"
    steps: list[tuple[str, tuple[FieldDescriptor, ...], Any]] = []
    for method in SERVICE.methods:
        steps.append((method.name, (), None))
        for path in leaves(method.input_type):
            values = FIELDS[key_of(path[-1])]
            steps += [
                (method.name, path, value) for value in (*values.good, *values.edge, *values.bad)
            ]
    return steps


def count() -> int:
    return len(walk()) + MIXTURES


def name_of(path: tuple[FieldDescriptor, ...], value: Any) -> str:
    shown = value.__qualname__ if callable(value) else repr(value)
    return f"{'.'.join(field.name for field in path)} = {shown[:60]}"


def draw(number: int) -> Case:
    """The case of that number."""
    rng = random.Random(SEED + number)
    if number < len(walk()):
        method, path, value = walk()[number]
        request = _good(number, method, rng, plain=True)
        if path:
            _change(request, path, value)
        return Case(number, method, request, (name_of(path, value),) if path else ())
    method = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    request = _good(number, method, rng, plain=False)
    changed = []
    paths = list(leaves(input_of(method)))
    for _ in range(rng.choices([0, 1, 2], [5, 4, 2])[0] if paths else 0):
        # Half of the changes are where most of a request is, not in the many fields of multimodal inputs.
        shallow = [path for path in paths if len(path) <= 2 and path[0].name != "mm_inputs"]
        path = rng.choice(shallow if rng.random() < 0.7 else paths)
        values = FIELDS[key_of(path[-1])]
        pool = values.edge if values.edge and (not values.bad or rng.random() < 0.5) else values.bad
        value = rng.choice(pool or values.good)
        _change(request, path, value)
        changed.append(name_of(path, value))
    data = request.SerializeToString()
    if data and rng.random() < 0.04:
        return Case(number, method, request, (*changed, "its bytes"), _spoil(rng, data))
    return Case(number, method, request, tuple(changed))


def _spoil(rng: random.Random, data: bytes) -> bytes:
    """Bytes that are no message: cut off within a field, of a wire type that there is not, or a text that is none."""
    how = rng.randrange(3)
    if how == 0:
        return data + b"\x0a\x7f" + b"x" * 20
    if how == 1:
        return data + b"\x0e\x00"
    return data + b"\x0a\x02\xff\xfe"


def hazard(case: Case) -> str | None:
    """Why it is not sent to the Python servicer, whose engine would die or hang; None: it is."""
    if case.method != "Generate":
        return None
    if any(token > INT32_MAX for token in case.request.tokenized.input_ids):
        return "the scheduler keeps token ids in signed 32 bits and dies with a larger one"
    if case.request.sampling_params.n > 64:
        return "it makes a list of n requests before it looks at n"
    return None
