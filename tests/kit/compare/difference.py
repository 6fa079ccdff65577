"""The differences between the outputs of two versions."""

from __future__ import annotations

import base64
import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

_AROUND = 60
"""Bytes that are shown ahead of a difference; twice as many are shown of it."""


@dataclass(frozen=True)
class Difference:
    """An output that the two versions do not have in common; None is an absent one."""

    name: str
    base: bytes | None
    head: bytes | None

    def lines(self) -> Iterator[str]:
        """Yield the beginning of the difference, of each version."""
        if self.base is None or self.head is None:
            yield "only in the new version" if self.base is None else "only in the base"
            return
        pairs = enumerate(zip(self.base, self.head, strict=False))
        shorter = min(len(self.base), len(self.head))
        at = next((at for at, (old, new) in pairs if old != new), shorter)
        start = max(at - _AROUND, 0)
        for side, output in (("base", self.base), ("new ", self.head)):
            shown = output[start : at + 2 * _AROUND].decode("utf-8", "replace")
            yield f"{side} {len(output):9} bytes, from {start}: {shown!r}"


@dataclass(frozen=True)
class Expected:
    """A difference that is intended."""

    outputs: str
    """A pattern of the names of outputs, as of a shell."""
    reason: str


def outputs_of(path: Path) -> dict[str, bytes]:
    """Read the outputs that `probe` wrote. Raises ValueError if two have one name."""
    outputs: dict[str, bytes] = {}
    with path.open(encoding="utf-8") as file:
        for document in map(json.loads, file):
            if document["name"] in outputs:
                raise ValueError(f"two outputs are named {document['name']!r}")
            outputs[document["name"]] = base64.b64decode(document["output"])
    return outputs


def differences(base: dict[str, bytes], head: dict[str, bytes]) -> list[Difference]:
    """Return the outputs that differ, in the order of the base, new ones last."""
    return [
        Difference(name, base.get(name), head.get(name))
        for name in {**base, **head}
        if base.get(name) != head.get(name)
    ]


def expected_in(path: Path) -> list[Expected]:
    """Read the intended differences from a TOML file."""
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("difference", [])
    return [Expected(entry["outputs"], entry["reason"]) for entry in entries]


def report(found: Iterable[Difference], expected: Iterable[Expected]) -> tuple[list[str], bool]:
    """Return the lines of a report, and whether each difference is intended and each entry used."""
    left, lines = list(found), []
    is_right = True
    for entry in expected:
        matched = [each for each in left if fnmatchcase(each.name, entry.outputs)]
        left = [each for each in left if each not in matched]
        is_right &= bool(matched)
        lines.append(f"{len(matched)} of {entry.outputs!r}, intended: {entry.reason}")
        if not matched:
            lines.append("    no output differs: remove the entry")
    for each in left:
        is_right = False
        lines.append(f"differs: {each.name}")
        lines += [f"    {line}" for line in each.lines()]
    return lines, is_right
