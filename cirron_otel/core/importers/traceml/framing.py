"""TraceML's framing: a length of 4 bytes, big-endian, then the payload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

HEADER_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 16 * 2**20
"""The longest payload that is read; TraceML's own have about 2,000 bytes."""


class OversizedFrame(NamedTuple):
    """A frame whose payload exceeds the limit, and was not kept."""

    size: int
    """The length that the frame states, bytes."""


class MissingFrames(NamedTuple):
    """Frames that a live stream has lost, e.g. because the disk was full."""

    size: int
    """Their length, bytes."""


def frame_of(payload: bytes) -> bytes:
    """Return a payload with its length in front."""
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


class FrameDecoder:
    """Cuts the bytes of one connection into payloads, without I/O.

    It buffers at most one incomplete frame. A frame that is longer than `max_bytes` is skipped
    without being buffered.
    """

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        """Accept payloads of up to `max_bytes`."""
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._skipping = 0

    def feed(self, data: bytes) -> Iterator[bytes | OversizedFrame]:
        """Yield the payloads that `data` completes, and the lengths of oversized frames.

        An oversized frame is reported when its length arrives, ahead of its skipped payload.
        """
        if self._skipping:
            skipped = min(self._skipping, len(data))
            self._skipping -= skipped
            data = data[skipped:]
        buffer, at = self._buffer, 0
        buffer += data
        while len(buffer) - at >= HEADER_BYTES:
            size = int.from_bytes(buffer[at : at + HEADER_BYTES], "big")
            end = at + HEADER_BYTES + size
            if size > self._max_bytes:
                yield OversizedFrame(size)
                self._skipping = max(0, end - len(buffer))
                at = min(end, len(buffer))
            elif end > len(buffer):
                break
            else:
                yield bytes(buffer[at + HEADER_BYTES : end])
                at = end
        del buffer[:at]

    @property
    def is_skipping(self) -> bool:
        """Whether an oversized frame has not ended yet."""
        return self._skipping > 0

    @property
    def rest(self) -> bytes:
        """The bytes of a frame that has not ended yet, with its length."""
        return bytes(self._buffer)
