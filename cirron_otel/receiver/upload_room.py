"""How much uploads may take on disk before they are complete: all together, and by tenant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from .export import Reason, RefusalError

_RETRY_AFTER_S = 60.0
_MOST_FILES = 20_000


class UploadRoom:
    """Counts the bytes of unfinished uploads; for one event loop."""

    def __init__(self, most: int | None) -> None:
        """`most` bytes of all tenants, half of it of one; None: no limit."""
        self._most = most
        self.least = 0 if most is None else most // _MOST_FILES
        """What a file counts at least, bytes, so that there are not too many."""
        self._held: Counter[str] = Counter()

    def check(self, size: int) -> None:
        """Raise RefusalError if a file of `size` bytes never finds room."""
        if self._most is not None and size > self._most // 2:
            raise RefusalError(
                Reason.TOO_LARGE,
                f"a file of {size} bytes: up to {self._most // 2} are taken here, a quarter of the"
                " cap of the spool",
            )

    def has_room(self, tenant: str, size: int) -> bool:
        """Whether `size` bytes more of a tenant may be held now."""
        if self._most is None:
            return True
        is_tenant_over = self._held[tenant] + size > self._most // 2
        return not is_tenant_over and self._held.total() + size <= self._most

    def is_full_of(self, tenant: str, size: int) -> bool:
        """Whether the tenant's own share is what leaves no room for `size` bytes more."""
        return self._most is not None and self._held[tenant] + size > self._most // 2

    def hold(self, tenant: str, size: int) -> None:
        """Hold bytes. Raises RefusalError if there is no room for them now."""
        self.check_now(tenant, size)
        self._held[tenant] += size

    def check_now(self, tenant: str, size: int) -> None:
        """Raise RefusalError if there is no room for `size` bytes now."""
        if not self.has_room(tenant, size):
            raise RefusalError(
                Reason.BUSY, "too many uploads are not complete: try again later", _RETRY_AFTER_S
            )

    def set(self, tenant: str, before: int, after: int) -> None:
        """Count `after` bytes in the place of `before`, whether there is room or not."""
        self._held[tenant] += after - before
        if self._held[tenant] <= 0:
            del self._held[tenant]

    @contextmanager
    def holding(self, tenant: str) -> Iterator[Hold]:
        """The bytes of one upload, which are free again at the end."""
        held = Hold(self, tenant)
        try:
            yield held
        finally:
            self.set(tenant, held.size, 0)


class Hold:
    """The bytes that one upload holds."""

    def __init__(self, room: UploadRoom, tenant: str) -> None:
        """Nothing is held yet."""
        self._room, self._tenant = room, tenant
        self.size = 0

    def add(self, size: int) -> None:
        """Hold more. Raises RefusalError if there is no room."""
        self._room.hold(self._tenant, size)
        self.size += size
