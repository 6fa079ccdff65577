"""The storage as a target that knows whose batches are by the headers that came with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

from ... import semconv
from ...core.delivery.batch_target import Receipt, SealedBatch
from ...core.targets.otlp.config import TENANT_HEADER
from ...core.targets.sql import ownership
from ...core.targets.sql.target import StorageTarget
from ..receiver.tenancy import TenantHeaders

_ATTRIBUTES = {
    TENANT_HEADER: semconv.WORKSPACE_ID,
    "x-cirron-workspace-id": semconv.WORKSPACE_ID,
    "x-cirron-run-id": semconv.RUN_ID,
    "x-cirron-pipeline-id": semconv.PIPELINE_ID,
    "x-cirron-deployment-id": semconv.DEPLOYMENT_ID,
    "x-cirron-model-id": semconv.MODEL_ID,
}
"""What headers say; of two that say the same the later one counts."""


def context_of(headers: TenantHeaders, context: ownership.Context) -> ownership.Context:
    """Whose rows are that came with `headers`: these go before what a resource says.

    A header comes from who sent it, or from the proxy that let him in; what is in the body anybody
    may write.
    """
    given = dict(headers)
    told = {key: given[name] for name, key in _ATTRIBUTES.items() if given.get(name)}
    return replace(context, overrides={**context.overrides, **told}) if told else context


class OwnedRows(StorageTarget):
    """Stores batches as those of whoever sent them."""

    def __init__(
        self, url: str, context: ownership.Context, headers_of: Callable[[str], TenantHeaders]
    ) -> None:
        """`headers_of` gives what came with a batch, by its name. Raises as StorageTarget does."""
        super().__init__(url, context)
        self.context = context
        """Of what says nothing itself; it may be replaced at any time."""
        self._headers_of = headers_of

    def send(self, batches: Sequence[SealedBatch]) -> Receipt:
        """Store batches, those of each owner by themselves; see BatchTarget.

        Where a later owner's fail, what was stored before is found again and left as it is.
        """
        owned = [(self._headers_of(batch.name), batch) for batch in batches]
        owned.sort(key=lambda each: each[0])
        for headers, group in groupby(owned, key=lambda each: each[0]):
            self._context = context_of(headers, self.context)
            super().send([batch for _, batch in group])
        return Receipt()
