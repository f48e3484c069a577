"""The tokenizer's files as one ZIP archive, for gateways that cannot read the model's directory.

Built once, off the engine's loop, and kept in an anonymous file in memory; the servicer streams it
from there. The same files always give the same bytes, so the digest names the tokenizer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

#: What gateways look for; a directory has some of them.
NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "tiktoken.model",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
PATTERNS = ("*.tiktoken", "*.jinja", "*.model")
#: Larger files are weights by another name.
FILE_BYTES_MAX = 256 * 1024 * 1024
_EPOCH = (1980, 1, 1, 0, 0, 0)


class Archive(TypedDict):
    """An archive that is built."""

    #: Readable until the process ends; read it by position.
    fd: int
    size: int
    #: Lower-case hexadecimal.
    sha256: str


class TokenizerArchive:
    """The archive of one directory. One loop."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._building: asyncio.Task[Archive] | None = None

    async def get(self) -> Archive:
        """LookupError: no path is configured. FileNotFoundError: there is nothing there."""
        if not self._path:
            raise LookupError("this worker has no tokenizer: no path is configured")
        if self._building is None or _failed(self._building):
            work = asyncio.to_thread(build, Path(self._path))
            self._building = asyncio.get_running_loop().create_task(work)
        return await asyncio.shield(self._building)


def _failed(task: asyncio.Task[Archive]) -> bool:
    """A failed build is not kept: the next caller tries again."""
    return task.done() and (task.cancelled() or task.exception() is not None)


def build(directory: Path) -> Archive:
    """Packs the files. Any thread; blocks. FileNotFoundError: no directory, or nothing in it."""
    if not directory.is_dir():
        raise FileNotFoundError(f"the tokenizer's directory {directory} is not there")
    fd = os.memfd_create("tokenizer.zip", os.MFD_CLOEXEC)
    try:
        with open(fd, "w+b", closefd=False) as file:
            if not _pack(directory, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED)):
                raise FileNotFoundError(f"no tokenizer files in {directory}")
            size = file.tell()
            file.seek(0)
            digest = hashlib.sha256()
            while piece := file.read(1 << 20):
                digest.update(piece)
    except BaseException:
        os.close(fd)
        raise
    return {"fd": fd, "size": size, "sha256": digest.hexdigest()}


def _pack(directory: Path, archive: zipfile.ZipFile) -> int:
    count = 0
    with archive:
        for path in sorted(_files(directory)):
            archive.writestr(_entry(path.name), path.read_bytes())
            count += 1
    return count


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, date_time=_EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry


def _files(directory: Path) -> Iterator[Path]:
    root = _root(directory)
    found = {directory / name for name in NAMES}
    for pattern in PATTERNS:
        found.update(directory.glob(pattern))
    for path in found:
        with contextlib.suppress(OSError):
            target = path.resolve(strict=True)
            inside = target.is_relative_to(root)
            if inside and target.is_file() and target.stat().st_size <= FILE_BYTES_MAX:
                yield path


def _root(directory: Path) -> Path:
    """Links that leave it are not followed.

    A hub's cache keeps a model's files as links from ``snapshots/<revision>`` to ``blobs``: there
    the model's own folder counts.
    """
    real = directory.resolve()
    if real.parent.name == "snapshots" and (real.parent.parent / "blobs").is_dir():
        return real.parent.parent
    return real
