"""The digests of one session, as marks of its steps (docs/digests.md).

The training thread starts the digests. The flush thread reads them when it makes the marks'
records, and then also writes the tensors of the steps that are kept.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.records.digest_marks import (
    DIGEST_BYTES,
    LOSS,
    PREFIX,
    Layout,
    pack,
    quantity_digest,
)
from ..session.errors import record_error, report_problem
from ..tracing.buffers import hooks, limits, local
from ..tracing.clock import now
from ..tracing.coerce import Deferred
from ..tracing.mark import POINT, check_room
from ..tracing.state import state

if TYPE_CHECKING:
    from ...core.config.options import Config
    from .digest_capture import DigestCapture

TENSORS = "tensors"
MOST_BYTES = 4 << 30
"""Maximum bytes of copied tensors that wait to be written."""
_REPEAT = 64
"""One in this many marks of a layout contains the names, dtypes and shapes."""


class _PerThread(threading.local):
    digester: Any = None


class Digests:
    """The digests of one session. `take` and `put` raise nothing."""

    def __init__(
        self, mode: str, every: int, keep: tuple[int, int] | None, directory: Path | None
    ) -> None:
        """`keep` contains the first and the last step that are kept, in files below `directory`.

        Without a directory, there are no files.
        """
        self._has_tensors = mode == TENSORS
        self._every, self._keep = every, keep
        self._directory = directory
        self._per_thread = _PerThread()
        self._layouts: dict[str, int] = {}
        """The number of marks with each layout."""
        self._copied: dict[int, int] = {}
        """The bytes of each capture's copies that wait to be written, by the capture's id."""
        self.count = 0
        """Number of digests of quantities."""
        self.files = self.file_bytes = 0
        self.seconds = self.longest = 0.0
        """Total and longest time that training threads were blocked, seconds."""

    def open(self) -> None:
        """Digest the steps that begin from now on."""
        state.digests = self

    def close(self) -> None:
        """Digest nothing more."""
        if state.digests is self:
            state.digests = None

    def stats(self) -> dict[str, Any]:
        """Return the numbers for `health()`: times in seconds, sizes in bytes."""
        return {
            "count": self.count,
            "seconds": self.seconds,
            "longest_seconds": self.longest,
            "files": self.files,
            "file_bytes": self.file_bytes,
        }

    # --- on the training thread -----------------------------------------------------------------

    def is_due(self, step: int) -> bool:
        """Return whether the step with that number is digested."""
        return step % self._every == 0 or self._is_kept(step)

    def _is_kept(self, step: int) -> bool:
        keep = self._keep
        return keep is not None and self._directory is not None and keep[0] <= step <= keep[1]

    def take(
        self, quantity: str, tensors: Callable[[], Iterable[tuple[str, Any]]], steps: Iterable[int]
    ) -> tuple[str, int, DigestCapture] | None:
        """Digest the tensors of a quantity; None if this version of torch is not supported.

        `steps` contains the numbers of the steps that it may belong to.
        """
        begun = now()
        try:
            capture = self._capture(quantity, tensors, steps)
            self._reserve(capture)
            self.count += 1
            return quantity, begun, capture
        except Exception as error:
            record_error("digest", error)
            return None
        finally:
            took = (now() - begun) / 1e9
            self.seconds += took
            self.longest = max(self.longest, took)

    def _capture(
        self, quantity: str, tensors: Callable[[], Iterable[tuple[str, Any]]], steps: Iterable[int]
    ) -> DigestCapture:
        """Digest the tensors; if that fails, return a capture of no tensor, and the reason."""
        from .digest_capture import DigestCapture, Digester  # noqa: PLC0415 - needs torch
        from .unseen import unseen  # noqa: PLC0415

        try:
            digester = self._per_thread.digester
            if digester is None:
                digester = self._per_thread.digester = Digester()
            is_kept = any(map(self._is_kept, steps))
            room = MOST_BYTES - self.waiting_bytes if is_kept else None
            has_numbers = self._has_tensors or quantity == LOSS
            with unseen():
                capture: DigestCapture = digester.capture(
                    tensors(), has_numbers=has_numbers, room=room
                )
        except Exception as error:
            capture = DigestCapture()
            capture.fail(quantity, error)
        return capture

    def put(
        self, scope: Any, taken: tuple[str, int, DigestCapture], step: int, occurrence: int, at: int
    ) -> None:
        """Make the mark of a digest: attach it to `scope`, the step with that number."""
        try:
            quantity, _, capture = taken
            if not self._is_kept(step):
                self._release(capture)
            attrs: dict[str, Any] = {"step": step, "occurrence": occurrence}
            if capture.is_sharded:
                attrs["sharded"] = True
            value = Deferred(lambda: self._read(scope, quantity, occurrence, capture, attrs))
            buffers = local.b
            ring = buffers.marks
            if len(ring) >= limits.marks_checked:
                check_room(buffers, len(ring))
            ring.append((scope, PREFIX + quantity, value, at, POINT, attrs))
            if capture.copies is not None and self.waiting_bytes > MOST_BYTES // 2:
                hooks.wake()
        except Exception as error:
            record_error("digest", error)

    def discard(self, taken: tuple[str, int, DigestCapture]) -> None:
        """Forget a digest that belongs to no step."""
        self._release(taken[2])

    @property
    def waiting_bytes(self) -> int:
        """The bytes of the copied tensors that wait to be written."""
        return sum(list(self._copied.values()))

    def _reserve(self, capture: DigestCapture) -> None:
        """Count the copies until they are released, or until their mark is dropped."""
        if capture.copies is not None:
            key = id(capture)
            self._copied[key] = capture.copied_bytes
            weakref.finalize(capture, self._copied.pop, key, None).atexit = False

    def _release(self, capture: DigestCapture) -> None:
        """Release the copies of tensors."""
        if capture.copies is not None:
            capture.copies = None
            self._copied.pop(id(capture), None)

    # --- on the flush thread --------------------------------------------------------------------

    def _read(
        self, scope: Any, quantity: str, occurrence: int, capture: DigestCapture,
        attrs: dict[str, Any],
    ) -> str:  # fmt: skip
        """Return the digest of a quantity, and complete the mark's attributes."""
        try:
            capture.wait()
        except TimeoutError as error:
            self._release(capture)
            capture = capture.without_tensors()
            capture.fail(quantity, error)
        digests = capture.digests()
        if self._has_tensors or quantity == LOSS:
            records = capture.records(digests)
            if quantity == LOSS and capture.is_one_number:
                bits = records[0][DIGEST_BYTES:]
                attrs["dtype"] = capture.dtypes[0]
                attrs["bits"] = bits[: len(bits) // 4][::-1].hex()
            if self._has_tensors:
                attrs["tensors"] = self._tensors(capture, records)
        if capture.copies is not None:
            self._write(scope, quantity, occurrence, capture, attrs)
        if capture.not_copied is not None:
            record_error("digest file", f"the tensors are not stored: {capture.not_copied}")
        if capture.failed:
            attrs["failed"] = "; ".join(capture.failed)[:1000]
            for failure in capture.failed:
                record_error("digest of a tensor", failure)
        return quantity_digest(capture.names, digests)

    def _tensors(self, capture: DigestCapture, records: list[bytes]) -> dict[str, Any]:
        layout = Layout(capture.names, capture.dtypes, capture.shapes)
        key = layout.id
        count = self._layouts.get(key, 0)
        self._layouts[key] = count + 1
        tensors: dict[str, Any] = {"layout": key, "packed": pack(records)}
        return tensors if count % _REPEAT else tensors | layout._asdict()

    def _write(
        self, scope: Any, quantity: str, occurrence: int, capture: DigestCapture,
        attrs: dict[str, Any],
    ) -> None:  # fmt: skip
        """Write the copies of the tensors, and release them."""
        from ...core.spool import snapshot_files  # noqa: PLC0415 - needs torch

        copies = capture.copies or {}
        try:
            span_id = scope.id
            if not span_id or self._directory is None:
                return  # the scope was dropped
            number = f".{occurrence}" if occurrence else ""
            path = self._directory / str(span_id) / f"{PREFIX}{quantity}{number}.safetensors"
            descriptions = dict(zip(capture.names, capture.descriptions, strict=True))
            self.file_bytes += snapshot_files.write(path, copies, descriptions)
            self.files += 1
            attrs["blob_uri"] = f"file://{path}"
        except Exception as error:
            record_error("digest file", error)
        finally:
            self._release(capture)


def digests_of(config: Config, directory: Path | None) -> Digests | None:
    """Create the digests for the options; None if they are off.

    Files are written below `directory`; None: none are.
    """
    if config.digest is None:
        if config.digest_keep is not None:
            report_problem(
                "digest_keep", "digest_keep is set without digest: no tensors are stored;"
                " set digest=step or digest=tensors, too",
            )  # fmt: skip
        return None
    directory = None if directory is None else directory.absolute()
    return Digests(config.digest, config.digest_every, config.digest_keep, directory)
