"""A simulated device for tests, whose time passes when a test advances it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from cirron_otel.sdk.instrumentation.patches import Patches
from cirron_otel.sdk.instrumentation.torch.clock import Clock


class ViolationError(Exception):
    """Raised by a use of the device that would break, or block, a training."""


class Event:
    """The part of CUDA's event interface that may be used. Anything else is a violation."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._home = device.number
        self._at: float | None = None
        self._askers: set[int] = set()

    def record(self) -> None:
        """Record the event on the stream, after everything enqueued so far."""
        device = self._device
        device.forbid(device.is_capturing, "record while a graph is captured")
        device.forbid(not device.is_up, "record without a context")
        if device.broken or self._home != device.number:
            raise RuntimeError("the event cannot be recorded")
        self._at = device.enqueued_ms + device.lag_ms
        self._askers = {threading.get_ident(), *device.also_asks}
        device.records += 1

    def query(self) -> bool:
        """Whether the device has reached the event."""
        device = self._device
        device.forbid(device.is_capturing, "query while a graph is captured")
        device.forbid(
            threading.get_ident() not in self._askers and not device.is_anyones,
            "query from another thread",
        )
        device.queries += 1
        if device.broken:
            raise RuntimeError("the device is lost")
        assert self._at is not None
        return self._at <= device.done_ms

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds between two events on the device."""
        self._device.forbid(not (self.query() and end.query()), "elapsed_time of what is not done")
        assert self._at is not None
        assert end._at is not None
        return end._at - self._at

    def __getattr__(self, name: str) -> Any:
        return self._device.forbid(True, f"{name} of an event")


class Device:
    """A source of events; `clock` reads them with the device's own seconds."""

    def __init__(self) -> None:
        self.enqueued_ms = 0.0
        """The work enqueued so far, as time on the device, ms."""
        self.done_ms = 0.0
        """The time that the device has reached, ms."""
        self.lag_ms = 0.0
        """How far the current stream lags the one of `done_ms`, ms."""
        self.keeps_up = False
        """Whether it completes everything as soon as that is enqueued."""
        self.seconds = 0.0
        """The host's time."""
        self.number = 0
        """The current device."""
        self.is_up = True
        self.is_capturing = self.broken = self.is_anyones = False
        self.also_asks: set[int] = set()
        """Threads that may query events of other threads."""
        self.violations: list[str] = []
        self.made = self.records = self.queries = 0
        self.pauses = 0
        self.on_pause: Callable[[], None] = lambda: None
        self.quiet: Callable[[], None] = lambda: None
        self.clock = Clock(self, lambda: self.seconds, self._pause)

    def event(self) -> Event:
        """Return an event of the current device."""
        self.made += 1
        return Event(self)

    def is_off(self) -> bool:
        """Whether the device is not in use yet, or a graph is captured."""
        return not self.is_up or self.is_capturing

    def install(self, patches: Patches, quiet: Callable[[], None]) -> None:  # noqa: ARG002
        """Hook nothing."""
        self.quiet = quiet

    def work(self, milliseconds: float) -> None:
        """Enqueue work."""
        self.enqueued_ms += milliseconds
        if self.keeps_up:
            self.done_ms = self.enqueued_ms

    def catch_up(self) -> None:
        """Complete all work."""
        self.done_ms = self.enqueued_ms

    def forbid(self, is_so: bool, what: str) -> None:
        """Record and raise a violation: one that is only raised would be swallowed by the hooks."""
        if is_so:
            self.violations.append(what)
            raise ViolationError(what)

    def _pause(self, seconds: float) -> None:
        self.pauses += 1
        self.seconds += seconds
        self.on_pause()


class Value:
    """A scalar on the device. A copy may be read once the device has made it."""

    def __init__(self, device: Device, value: float) -> None:
        self._device, self._value = device, value
        self._copied_ms: float | None = None

    def detach(self) -> Value:
        return self

    def to(self, target: str, *, non_blocking: bool) -> Value:
        assert (target, non_blocking) == ("cpu", True)
        copied = Value(self._device, self._value)
        self._device.work(0.1)
        copied._copied_ms = self._device.enqueued_ms
        return copied

    def item(self) -> float:
        device = self._device
        device.forbid(self._copied_ms is None, "item of a value on the device")
        assert self._copied_ms is not None
        device.forbid(self._copied_ms > device.done_ms, "item before the copy is done")
        return self._value
