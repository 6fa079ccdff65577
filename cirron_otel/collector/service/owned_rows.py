"""The rows that a collector stores and updates; the headers of requests determine their owners.

`OwnedRows` stores batches, and `SnapshotRows` writes the URIs of tensors into their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from ... import semconv
from ...core.delivery.batch_target import Receipt, SealedBatch
from ...core.targets.otlp.config import TENANT_HEADER
from ...core.targets.sql.ownership import OwnerContext, OwnerResolver
from ...core.targets.sql.target import StorageTarget
from ...ids import is_id
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


def context_of(headers: TenantHeaders, context: OwnerContext) -> OwnerContext:
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
        self,
        url: str,
        context: OwnerContext,
        headers_of: Callable[[str], TenantHeaders],
        statement_s: float | None = None,
    ) -> None:
        """`headers_of` returns the headers of a batch by its name; `statement_s` as for
        StorageTarget. Raises the errors of StorageTarget.
        """
        super().__init__(url, context, statement_s=statement_s)
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


class SnapshotRows:
    """Implements the uploader's SnapshotRowStore and SnapshotOwnership with a database; for one
    thread.

    Without a URL there is no database.
    """

    def __init__(
        self,
        url: str | None,
        context: OwnerContext,
        headers_of: Callable[[str], TenantHeaders],
        statement_s: float | None = None,
    ) -> None:
        """Store the arguments; the first use connects.

        `headers_of` returns the headers of a batch by its name.
        """
        self._target = None if url is None else StorageTarget(url, statement_s=statement_s)
        self._headers_of = headers_of
        self.context = context
        """The ownership of records that specify none; it may be replaced at any time."""

    # --- owners ---------------------------------------------------------------------------------

    def owners_of(
        self, name: str, batch: Mapping[str, Any]
    ) -> Callable[[Mapping[str, Any]], tuple[str, str]]:
        """Return a function that maps a snapshot record to (workspace id, run id).

        The run id is the first of these that exists: the batch's run id, the batch's session, the
        run or root span of the record's span, the span itself. It is "none" for a record without a
        span.
        """
        owner = OwnerResolver(batch, context_of(self._headers_of(name), self.context)).whole
        otel = batch.get("otel")
        session = otel.get("session") if isinstance(otel, dict) else None
        run = owner.run_id or (session if is_id(session) else None)
        if run is not None:
            return lambda _: (owner.workspace_id, run)
        parents = _parents(batch)

        def of(record: Mapping[str, Any]) -> tuple[str, str]:
            span_id = record.get("span_id")
            if not isinstance(span_id, str):
                return owner.workspace_id, "none"
            if span_id in parents:
                return owner.workspace_id, _top(span_id, parents)
            return owner.workspace_id, self._stored_run(owner.workspace_id, span_id) or span_id

        return of

    def _stored_run(self, workspace_id: str, span_id: str) -> str | None:
        if self._target is None:
            return None
        return self._target.use(lambda store: store.run_of_span(workspace_id, span_id))

    # --- rows -----------------------------------------------------------------------------------

    def readdress(self, batch: str, data: bytes | None, uris: Mapping[int, str]) -> bool:
        """Write the URIs of tensors, by record number; False if the batch is not stored yet."""
        if self._target is None:
            return False
        return self._target.use(lambda store: store.set_blob_uris(batch, data, uris))

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._target is not None:
            self._target.close()


def _parents(batch: Mapping[str, Any]) -> dict[str, str | None]:
    spans = batch.get("spans")
    return {
        span["id"]: span.get("parent_id") if isinstance(span.get("parent_id"), str) else None
        for span in (spans if isinstance(spans, list) else [])
        if isinstance(span, dict) and isinstance(span.get("id"), str)
    }


def _top(span_id: str, parents: Mapping[str, str | None]) -> str:
    seen = {span_id}
    while (parent_id := parents.get(span_id)) is not None and parent_id not in seen:
        seen.add(parent_id)
        span_id = parent_id
    return span_id
