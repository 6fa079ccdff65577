"""Retry times of snapshot files."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..spool.blobs import BlobKey, tenant_of_directory
from .blobs import BlobQueue
from .retry_policy import FailureKind, RetryGate, RetryPolicy, kind_of

_ALWAYS = float("-inf")


class BlobGates:
    """A retry gate for the target, and one for each tenant with a failed upload; for one thread.

    A failed upload delays the other files of its tenant. It delays all files if the target did not
    respond.
    """

    def __init__(self, policy: RetryPolicy, clock: Callable[[], float]) -> None:
        """Create an instance with all gates open. `clock` returns seconds."""
        self._policy, self._clock = policy, clock
        self._target = RetryGate(policy, clock)
        self._tenants: dict[str, RetryGate] = {}

    def first(self, queue: BlobQueue) -> BlobKey | None:
        """Return the first file of a queue that may be tried now; None if there is none."""
        if not self._target.is_open:
            return None
        if not self._tenants:
            return next(iter(queue), None)
        closed = {name for name, gate in self._tenants.items() if not gate.is_open}
        keys = (key for key in queue if tenant_of_directory(key.directory) not in closed)
        return next(keys, None)

    def opens(self, queues: Iterable[BlobQueue]) -> float:
        """Return when the first file of the queues may be tried; infinity if there is none."""
        times = {
            max(self._target.opens, self._opens_for(tenant))
            for queue in queues
            for tenant in ({tenant_of_directory(key.directory) for key in queue})
        }
        return min(times, default=float("inf"))

    def passed(self, key: BlobKey) -> None:
        """Record that the target accepted an upload, or refused it permanently."""
        self._target.passed()
        self._tenants.pop(tenant_of_directory(key.directory), None)

    def failed(self, key: BlobKey, error: Exception) -> None:
        """Delay all files if the target did not respond, else the files of the same tenant."""
        if kind_of(error) is FailureKind.NO_ANSWER:
            self._target.failed(error)
            return
        tenant = tenant_of_directory(key.directory)
        self._tenants.setdefault(tenant, RetryGate(self._policy, self._clock)).failed(error)

    def shorten_waits(self) -> None:
        """Wait no longer than the target asked for, because the process is about to end."""
        for gate in (self._target, *self._tenants.values()):
            gate.shorten_waits()

    def _opens_for(self, tenant: str) -> float:
        gate = self._tenants.get(tenant)
        return _ALWAYS if gate is None else gate.opens
