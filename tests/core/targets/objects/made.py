"""Contents, and safetensors files made by hand."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from cirron_otel.core.targets.objects import BlobStore
from cirron_otel.core.targets.objects.store import BlobContent, file_content


@contextlib.contextmanager
def content_of(path: Path) -> Iterator[BlobContent]:
    with path.open("rb") as file:
        yield file_content(file)


def put(store: BlobStore, key: str, path: Path) -> bool:
    with content_of(path) as content:
        return store.put(key, content)


def written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def noise(size: int, seed: int = 1) -> bytes:
    """So many bytes, the same every time, others for each seed."""
    block = hashlib.shake_256(seed.to_bytes(8, "big")).digest(min(size, 1 << 20))
    return (block * -(-size // max(len(block), 1)))[:size]


def file_of(tensors: Mapping[str, tuple[str, list[int], bytes]], **extra: object) -> bytes:
    """A safetensors file; by its name (dtype, shape, bytes) of each tensor."""
    said: dict[str, object] = dict(extra)
    body = b""
    for name, (dtype, shape, data) in tensors.items():
        offsets = [len(body), len(body) + len(data)]
        said[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        body += data
    text = json.dumps(said).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body
