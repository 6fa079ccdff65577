"""The cursor of an exporter: which batches an endpoint has acknowledged.

It is the set of acknowledged names above a low-water mark, never "the last file name": a batch that
was sealed earlier may be renamed into place later. It stands in the spool's `state/`, written whole
or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from ..errors import InputError, TargetError
from ..ids import digest
from ..otlp.replacing import replacing

_KEPT = 10_000
"""Acknowledged names that are kept one by one; older ones are covered by the mark."""


class Cursor:
    """What one endpoint has of one spool."""

    def __init__(self, state: Path, target: str) -> None:
        """Open the cursor for `target` in the directory `state`. Raises InputError if damaged."""
        self.path = state / f"export-{digest('cursor', target)[:8].hex()}.json"
        self._target = target
        self.mark = ""
        """Every name up to this one is done."""
        self._done: set[str] = set()
        self._load()

    def _load(self) -> None:
        try:
            told = json.loads(self.path.read_bytes())
            self.mark = str(told["low_water_mark"])
            self._done = {str(name) for name in told["acknowledged"]}
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"cursor {self.path} cannot be read ({error}): remove it to export all again"
            ) from None

    def __contains__(self, name: str) -> bool:
        return name <= self.mark or name in self._done

    def acknowledge(self, name: str) -> None:
        """Note that the endpoint has a batch; `save` makes it last."""
        self._done.add(name)

    def save(self, pending: Iterable[str] = ()) -> None:
        """Write the cursor. Raises TargetError where it cannot be written.

        The mark stays below the names that are `pending`: seen and not acknowledged.
        """
        if len(self._done) > 2 * _KEPT:
            names = sorted(self._done)
            mark = names[-_KEPT - 1]
            if all(name > mark for name in pending):
                self.mark = mark
                self._done = set(names[-_KEPT:])
        told = {
            "target": self._target,
            "low_water_mark": self.mark,
            "acknowledged": sorted(self._done),
        }
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            what = os.strerror(error.errno or 0)
            raise TargetError(f"cannot write {self.path}: {what}") from None
        with replacing(self.path) as file:
            file.write(json.dumps(told, indent=1).encode())
