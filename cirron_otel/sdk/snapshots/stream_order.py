"""Use tensors that were created on one stream of a device on its other streams, too."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any


class StreamOrder:
    """The order in which streams may use tensors that are created once and used again."""

    def __init__(self, device: Any) -> None:
        torch = sys.modules["torch"]
        self._device = device
        self._has_streams = device.type == "cuda" and torch.cuda.is_initialized()
        self._created: Any = None
        """An event of the stream that created the last tensors."""
        self._stream: Any = None

    def created(self) -> None:
        """Record that tensors were created on the current stream, after a call of `wait`."""
        if self._has_streams:
            self._stream = self._current()
            self._created = self._stream.record_event()

    def wait(self) -> None:
        """Let the current stream, but not the host, wait until the tensors are created."""
        if self._created is not None and (current := self._current()) != self._stream:
            current.wait_event(self._created)

    def use(self, tensors: Iterable[Any]) -> None:
        """Keep the memory of tensors until the work that the current stream has now is done."""
        if self._has_streams:
            current = self._current()
            for tensor in tensors:
                tensor.record_stream(current)  # nothing, for the stream that created it

    def _current(self) -> Any:
        return sys.modules["torch"].cuda.current_stream(self._device)
