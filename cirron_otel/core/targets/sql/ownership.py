"""Whose records they are: workspace, run, pipeline, deployment and model of each span."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ....errors import UsageError
from ....semconv import DEPLOYMENT_ID, MODEL_ID, PIPELINE_ID, RUN_ID, WORKSPACE_ID
from ...records.columns import text
from .keys import bounded

NAMES = (WORKSPACE_ID, RUN_ID, PIPELINE_ID, DEPLOYMENT_ID, MODEL_ID)
"""The resource attributes that say it, in the order of Owner's fields."""

DEFAULT_WORKSPACE = "default"

BlobUri = Callable[[Mapping[str, Any], str, str], str | None]
"""(snapshot record, workspace id, run id) → where its blob lies in the object storage, or None."""


class RowOwner(NamedTuple):
    """Whose a record is; None where nobody has said so."""

    workspace_id: str = DEFAULT_WORKSPACE
    run_id: str | None = None
    pipeline_id: str | None = None
    deployment_id: str | None = None
    model_id: str | None = None


@dataclass(frozen=True, slots=True)
class OwnerContext:
    """What the batches do not say themselves. Keys are those of NAMES; raises UsageError else."""

    defaults: Mapping[str, str] = field(default_factory=dict)
    """Holds where the resource of a record says nothing."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Holds whatever the resource says: for what is known of who sent it."""
    blob_uri: BlobUri | None = None
    """Where the blobs of snapshots go; None for leaving the recorded `blob_uri` in its column."""

    def __post_init__(self) -> None:
        for key in (*self.defaults, *self.overrides):
            if key not in NAMES:
                raise UsageError(f"{key!a} tells nobody's records: use one of {', '.join(NAMES)}")


DEFAULT_CONTEXT = OwnerContext()
"""Every owner is what the batch contains."""


class OwnerResolver:
    """The owners of a batch's spans, found in its resources."""

    def __init__(self, batch: Any, context: OwnerContext) -> None:
        """Look through a batch, as `exactjson.loads` gives it."""
        otel = batch.get("otel") if isinstance(batch, dict) else None
        otel = otel if isinstance(otel, dict) else {}
        self._context = context
        self.whole = self._owner(_attributes(otel))
        """Of the batch, and of what stands in no resource of its own."""
        self._runs = list(self._of_resources(otel.get("resource_spans")))

    def of_spans(self, count: int) -> Iterator[RowOwner]:
        """The owner of each of the batch's spans, in order."""
        for number, owner in self._runs:
            yield from (owner for _ in range(min(number, count)))
            count -= min(number, count)
        yield from (self.whole for _ in range(count))

    def _owner(self, attributes: Mapping[str, Any]) -> RowOwner:
        said = {**self._context.defaults}
        for name in NAMES:
            if isinstance(value := attributes.get(name), str | int) and value != "":
                said[name] = text(value)
        said |= self._context.overrides
        workspace, *others = (bounded(value) if (value := said.get(n)) else None for n in NAMES)
        return RowOwner(workspace or DEFAULT_WORKSPACE, *others)

    def _of_resources(self, messages: Any) -> Iterator[tuple[int, RowOwner]]:
        """Of a batch born in OTLP: how many of its spans stand in a row in one resource."""
        for message in messages if isinstance(messages, list) else []:
            if isinstance(message, dict):
                scopes = message.get("scope_spans")
                counts = [
                    scope.get("spans", 0)
                    for scope in (scopes if isinstance(scopes, list) else [])
                    if isinstance(scope, dict)
                ]
                number = sum(count for count in counts if type(count) is int and count > 0)
                yield number, self._owner(_attributes(message))


def _attributes(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    resource = holder.get("resource")
    found = resource.get("attributes") if isinstance(resource, dict) else None
    return found if isinstance(found, dict) else {}
