"""What a session left about its out-of-memory errors: the failing spans and the bundles."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from tests.kit.sessions.spool_trees import Node, Spool

FILES = ["environment.json", "events.json", "manifest.json", "metadata.json"]
ERROR = 2


def torch_oom() -> None:
    """Ask the CPU allocator for more than any machine has."""
    import torch

    torch.empty(1 << 60, dtype=torch.float32)


REQUESTED = 1 << 62
"""The bytes that `torch_oom` requests."""


def oom_nodes(spool: Spool) -> list[Node]:
    """The spans with a mark `oom`, in the order of the marks."""
    found = [node for root in spool.roots for node in every(root) if ooms_of(node)]
    return sorted(found, key=lambda node: int(ooms_of(node)[0]["ts_ns"]))


def every(node: Node) -> list[Node]:
    return [node, *(found for child in node.children for found in every(child))]


def ooms_of(node: Node) -> list[dict[str, Any]]:
    return [mark for mark in node.marks if mark["name"] == "oom"]


def bundles(directory: Path) -> list[Path]:
    """The bundles below a directory with `spool/`; none of them is unfinished."""
    found = sorted((directory / "oom").glob("*"))
    assert all(len(each.name) == 32 for each in found), found
    return found


def read_bundle(bundle: Path) -> dict[str, Any]:
    """The content of a bundle's JSON files by name; only its owner may read them."""
    assert stat.S_IMODE(bundle.stat().st_mode) == 0o700
    assert stat.S_IMODE(bundle.parent.stat().st_mode) == 0o700
    for file in bundle.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    return {file.name: json.loads(file.read_bytes()) for file in sorted(bundle.glob("*.json"))}


def assert_failed(node: Node, kind: str) -> None:
    """It has ERROR and the event `exception`, as any scope that an exception leaves."""
    otel = node.record["otel"]
    assert otel["status"]["code"] == ERROR
    (event,) = [each for each in otel["events"] if each["name"] == "exception"]
    attributes = event.get("attrs", event.get("attributes"))
    assert attributes["exception.type"] == kind
    assert "Traceback" in attributes["exception.stacktrace"]
