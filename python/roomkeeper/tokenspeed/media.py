"""Multimodal inputs as TokenSpeed's own objects, with torch tensors.

A tensor uses the bytes as they came, without another copy; floats of the tower's input are cast to
the model's dtype. Any thread, but for what says otherwise.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any, NamedTuple

from roomkeeper.multimodal import AUDIO, IMAGE, VIDEO, Media, Remote, Tensor, switched_on

_log = logging.getLogger("roomkeeper")


class _Handle(NamedTuple):
    """A remote tensor as the puller takes it, named as on the wire."""

    transport: str
    descriptor: bytes
    nbytes: int


class _Remote(NamedTuple):
    remote: _Handle
    dtype: str
    shape: tuple[int, ...]


class TokenSpeedMedia:
    """Makes TokenSpeed's multimodal objects. One a worker."""

    def __init__(self, async_llm: Any) -> None:
        args = async_llm.server_args
        self._dtype = getattr(getattr(async_llm, "model_config", None), "dtype", None)
        self._bootstrap_port = getattr(args, "disaggregation_bootstrap_port", 0)
        self._encodes = getattr(args, "disaggregation_mode", "null") == "encode"
        self._bootstrap_host = ""
        self._puller: Any = None
        self._lock = threading.Lock()

    # -- Generate --

    def inputs(self, items: list[Media]) -> Any:
        """A ``MultimodalInputs``. ValueError for what TokenSpeed cannot take."""
        from tokenspeed.runtime.multimodal.inputs import MultimodalInputs

        token_ids = {item.modality: item.placeholder_token_id for item in items}
        return MultimodalInputs(
            mm_items=[self._item(item) for item in items],
            im_token_id=token_ids.get(IMAGE),
            video_token_id=token_ids.get(VIDEO),
        )

    def _item(self, item: Media) -> Any:
        made = _data_item(
            item,
            feature=None if item.encoder_input is None else self._feature(item.encoder_input, None),
            # The engine keys its caches by it. The first eight bytes, as gateways count on.
            hash=int.from_bytes(item.content_hash[:8], "little") if item.content_hash else None,
        )
        made.set_pad_value()
        if item.encoder is not None:
            host, port, room = item.encoder
            made.encode_handshake = {
                "bootstrap_host": host,
                "bootstrap_port": port,
                "bootstrap_room": room,
            }
        return made

    # -- Encode --

    def encode(self, request_id: str, room: int, item: Media) -> Any:
        """An ``EncodeRequest``. Who does not hand it to the engine calls ``discard``."""
        from tokenspeed.runtime.epd.encode_worker import EncodeRequest
        from tokenspeed.runtime.multimodal.hash import hash_feature
        from tokenspeed.runtime.multimodal.shm_transport import ShmTensorHandle

        assert item.encoder_input is not None, "checked by the servicer"
        feature: Any = self._feature(item.encoder_input, room)
        # The embedding cache goes by what the tower sees, not by what the gateway hashed.
        content = hash_feature(feature)
        host = self._own_host()
        made = _data_item(item, feature=feature, hash=content)
        made.set_pad_value()
        if switched_on("EPD_PIXEL_SHM", True):
            made.feature_shm = ShmTensorHandle.publish(feature)
            made.feature = None
        return EncodeRequest(
            request_id=request_id,
            bootstrap_host=host,
            bootstrap_port=self._bootstrap_port,
            bootstrap_room=room,
            items=[made],
        )

    def _own_host(self) -> str:
        with self._lock:
            if not self._bootstrap_host:
                from tokenspeed.runtime.utils.network import get_local_ip_by_remote

                self._bootstrap_host = str(get_local_ip_by_remote())
            return self._bootstrap_host

    # -- tensors --

    def _feature(self, tensor: Tensor, room: int | None) -> Any:
        """What the tower sees, in the model's dtype if it is a float."""
        if isinstance(tensor.payload, Remote):
            handle = _Remote(_Handle(*tensor.payload), tensor.dtype, tensor.shape)
            return self._pull().feature_from_remote(handle, explicit_room=room, cast_to=self._dtype)
        made = torch_tensor(tensor)
        if self._dtype is not None and made.is_floating_point() and made.dtype != self._dtype:
            return made.to(self._dtype)
        return made

    def _pull(self) -> Any:
        """The NIXL agent that fetches remote tensors. ValueError when there is none."""
        with self._lock:
            if self._puller is None:
                self._puller = _make_puller(self._encodes, self._bootstrap_port)
            return self._puller


def discard(request: Any) -> None:
    """Removes the shared memory of an ``EncodeRequest`` that the engine does not have."""
    for item in getattr(request, "items", ()):
        handle = getattr(item, "feature_shm", None)
        if handle is not None:
            handle.release()
            item.feature_shm = None


def torch_tensor(tensor: Tensor) -> Any:
    """On the bytes as they are, not copied."""
    import torch

    assert not isinstance(tensor.payload, Remote), "checked by the servicer"
    dtype = getattr(torch, tensor.dtype, None)
    if dtype is None:
        raise ValueError(f"a tensor's dtype is {tensor.dtype}; this torch has no such")
    if not tensor.payload:  # torch reads from no empty buffer
        return torch.empty(tensor.shape, dtype=dtype)
    return torch.frombuffer(tensor.payload, dtype=dtype).reshape(tensor.shape)


def _data_item(item: Media, **fields: Any) -> Any:
    from tokenspeed.runtime.multimodal.inputs import Modality, MultimodalDataItem

    names = {IMAGE: Modality.IMAGE, AUDIO: Modality.AUDIO, VIDEO: Modality.VIDEO}
    return MultimodalDataItem(
        modality=names[item.modality],
        model_specific_data={name: torch_tensor(made) for name, made in item.tensors.items()},
        offsets=[(offset, offset + length - 1) for offset, length in item.placeholders],
        **fields,
    )


def _make_puller(encodes: bool, port: int) -> Any:
    """The one that TokenSpeed's own servicer comes with: it knows gateways' descriptors."""
    if not switched_on("SMG_MM_PIXEL_RDMA", False):
        raise ValueError(
            "an encoder_input is remote, but this worker fetches none: set SMG_MM_PIXEL_RDMA=1 "
            "here, or send it inline or in shared memory"
        )
    try:
        from smg_grpc_servicer.mm_rdma import RdmaPixelPuller
    except ImportError as error:
        raise ValueError(
            f"an encoder_input is remote, but nothing here can fetch it: {error}; install "
            "smg-grpc-servicer and nixl"
        ) from error
    role = "encode" if encodes else "scheduler"
    _log.info("remote tensors are fetched by NIXL")
    return RdmaPixelPuller(
        agent_name=f"roomkeeper-{role}-{os.uname().nodename}-{port}-{os.getpid()}",
        log_prefix="roomkeeper",
    )
