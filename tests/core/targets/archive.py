"""A second implementation of the target interface: a file of JSON lines.

It shows that a new destination needs no change in the package.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from cirron_otel.core.delivery.batch_target import Receipt, SealedBatch
from cirron_otel.core.delivery.errors import RefusedError, StoppedError, UnreachableError
from cirron_otel.ids import digest


class ArchiveTarget:
    """Appends each batch to a file, as one line of JSON."""

    request_bytes = 1_000_000
    blobs = None

    def __init__(self, path: Path) -> None:
        self._path = path
        self.shown = f"archive {path}"
        self.key = digest("archive target", str(path))[:8].hex()
        self._is_interrupted = False

    def send(self, batches: Sequence[SealedBatch]) -> Receipt:
        if self._is_interrupted:
            raise StoppedError(f"stopped before {self.shown} had everything")
        lines = []
        for batch in batches:
            try:
                content = json.loads(batch.data)
            except ValueError as error:
                raise RefusedError(f"{batch.name} is not a batch: {error}") from None
            if not isinstance(content, dict):
                raise RefusedError(f"{batch.name} is not a batch: expected an object")
            lines.append(json.dumps(content) + "\n")
        try:
            with self._path.open("a") as file:
                file.write("".join(lines))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UnreachableError(f"{self.shown} cannot be written: {error.strerror}") from None
        return Receipt()

    def interrupt(self) -> None:
        self._is_interrupted = True

    def close(self) -> None:
        pass

    def abandon(self) -> None:
        pass
