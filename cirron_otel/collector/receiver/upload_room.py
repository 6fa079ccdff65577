"""The limit on disk space for unfinished uploads, in total and for each tenant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from .consumer import Reason, RefusalError

_RETRY_AFTER_S = 60.0
_MOST_FILES = 20_000


class UploadRoom:
    """Counts the bytes of unfinished uploads; for one event loop."""

    def __init__(self, most: int | None) -> None:
        """`most` is the limit for all tenants together, bytes, or None for no limit.

        Each tenant may use half of it.
        """
        self._most = most
        self.least = 0 if most is None else most // _MOST_FILES
        """Smaller files count as this many bytes, which limits the number of files."""
        self._held: Counter[str] = Counter()
        self._total = 0

    def check(self, size: int) -> None:
        """Raise RefusalError if a file of `size` bytes exceeds the limit of a single tenant."""
        if self._most is not None and size > self._most // 2:
            raise RefusalError(
                Reason.TOO_LARGE,
                f"the file has {size} bytes, and the limit is {self._most // 2}, a quarter of the"
                " spool's cap",
            )

    def has_room(self, tenant: str, size: int) -> bool:
        """Return whether `size` more bytes of a tenant may be held now."""
        if self._most is None:
            return True
        is_tenant_over = self._held[tenant] + size > self._most // 2
        return not is_tenant_over and self._total + size <= self._most

    def is_full_of(self, tenant: str, size: int) -> bool:
        """Return whether `size` more bytes would exceed the tenant's share, half of the limit."""
        return self._most is not None and self._held[tenant] + size > self._most // 2

    def hold(self, tenant: str, size: int) -> None:
        """Hold `size` bytes. Raises RefusalError if there is no room for them now."""
        self.check_now(tenant, size)
        self.set(tenant, 0, size)

    def check_now(self, tenant: str, size: int) -> None:
        """Raise RefusalError if there is no room for `size` bytes now."""
        if not self.has_room(tenant, size):
            raise RefusalError(
                Reason.BUSY, "too many unfinished uploads: try again later", _RETRY_AFTER_S
            )

    def set(self, tenant: str, before: int, after: int) -> None:
        """Count `after` bytes of a tenant instead of `before`, even if there is no room."""
        self._total += after - before
        self._held[tenant] += after - before
        if self._held[tenant] <= 0:
            del self._held[tenant]

    @contextmanager
    def holding(self, tenant: str) -> Iterator[Hold]:
        """Yield a Hold for one upload; its bytes are released at the end."""
        held = Hold(self, tenant)
        try:
            yield held
        finally:
            self.set(tenant, held.size, 0)


class Hold:
    """The bytes that one upload holds."""

    def __init__(self, room: UploadRoom, tenant: str) -> None:
        """Start with no bytes held."""
        self._room, self._tenant = room, tenant
        self.size = 0

    def add(self, size: int) -> None:
        """Hold `size` more bytes. Raises RefusalError if there is no room."""
        self._room.hold(self._tenant, size)
        self.size += size
