"""The storage target, which derives the owner of a batch from the headers of its requests."""

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
"""The attribute that each header sets. If two headers set the same attribute, the one that is later
in this table takes precedence."""


def context_of(headers: TenantHeaders, context: ownership.OwnerContext) -> ownership.OwnerContext:
    """Return the ownership of rows received with `headers`, which override the resource.

    Headers come from the authenticated sender, or from the proxy that admitted it; any client can
    write any resource into a body.
    """
    by_name = dict(headers)
    overrides = {key: by_name[name] for name, key in _ATTRIBUTES.items() if by_name.get(name)}
    return replace(context, overrides={**context.overrides, **overrides}) if overrides else context


class OwnedRows(StorageTarget):
    """Stores each batch under the owner that sent it."""

    def __init__(
        self, url: str, context: ownership.OwnerContext, headers_of: Callable[[str], TenantHeaders]
    ) -> None:
        """`headers_of` returns the headers of a batch by its name. Raises the errors of
        StorageTarget.
        """
        super().__init__(url, context)
        self.context = context
        """The ownership of rows without headers and attributes; it may be replaced at any time."""
        self._headers_of = headers_of

    def send(self, batches: Sequence[SealedBatch]) -> Receipt:
        """Store batches, with one call for each owner.

        If the batches of a later owner fail, the retry leaves the batches that are already stored
        unchanged.
        """
        owned = [(self._headers_of(batch.name), batch) for batch in batches]
        owned.sort(key=lambda each: each[0])
        for headers, group in groupby(owned, key=lambda each: each[0]):
            self._context = context_of(headers, self.context)
            super().send([batch for _, batch in group])
        return Receipt()
