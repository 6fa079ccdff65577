"""Targets that do not receive batches whose tenant is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.delivery.batch_target import Receipt, SealedBatch, lanes_of
from ..receiver.tenancy import HELD, TenantStore


class HoldingTarget:
    """A wrapper around a target that refuses to send held batches, which form a lane of their own.

    All other attributes are those of the target.
    """

    def __init__(self, target: Any, owners: TenantStore) -> None:
        """`owners` determines the held batches."""
        self._target, self._owners = target, owners

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def lane_of(self, name: str) -> str:
        """Return the lane of a batch."""
        return HELD if self._owners.is_held(name) else lanes_of(self._target)(name)

    def send(self, batches: Sequence[SealedBatch]) -> Receipt:
        """Send batches. Raises UnknownTenantError for a held batch, and the target's errors."""
        for batch in batches:
            self._owners.check(batch.name)
        receipt: Receipt = self._target.send(batches)
        return receipt
