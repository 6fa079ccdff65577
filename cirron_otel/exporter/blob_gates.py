"""When the next snapshot file may be tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..spool.blobs import BlobKey, tenant_of_directory
from .blobs import BlobQueue
from .pace import Failure, Gate, Pace, kind_of

_ALWAYS = float("-inf")


class BlobGates:
    """A gate for the target, and one for each tenant with a failed upload; for one thread.

    A failed upload delays the other files of its tenant. It delays all files if the target gave no
    answer.
    """

    def __init__(self, pace: Pace, clock: Callable[[], float]) -> None:
        """All are open. `clock` gives seconds."""
        self._pace, self._clock = pace, clock
        self._target = Gate(pace, clock)
        self._tenants: dict[str, Gate] = {}

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
        """Note that the target answered an upload with success, or refused it permanently."""
        self._target.passed()
        self._tenants.pop(tenant_of_directory(key.directory), None)

    def failed(self, key: BlobKey, error: Exception) -> None:
        """Delay the files that the failure is evidence against."""
        if kind_of(error) is Failure.NO_ANSWER:
            self._target.failed(error)
            return
        tenant = tenant_of_directory(key.directory)
        self._tenants.setdefault(tenant, Gate(self._pace, self._clock)).failed(error)

    def hurry(self) -> None:
        """Wait no longer than the target asked to: the end is near."""
        for gate in (self._target, *self._tenants.values()):
            gate.hurry()

    def _opens_for(self, tenant: str) -> float:
        gate = self._tenants.get(tenant)
        return _ALWAYS if gate is None else gate.opens
