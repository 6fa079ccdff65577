"""The owner of each span: workspace, run, pipeline, deployment and model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ....errors import UsageError
from ....semconv import DEPLOYMENT_ID, MODEL_ID, PIPELINE_ID, RUN_ID, WORKSPACE_ID
from ...records.columns import text
from .keys import bounded

NAMES = (WORKSPACE_ID, RUN_ID, PIPELINE_ID, DEPLOYMENT_ID, MODEL_ID)
"""The resource attributes that identify an owner, in the order of RowOwner's fields."""

DEFAULT_WORKSPACE = "default"

BlobUri = Callable[[Mapping[str, Any], str, str], str | None]
"""Takes (snapshot record, workspace id, run id); returns the URI of the snapshot's blob, or None.
"""


class RowOwner(NamedTuple):
    """The owner of a record; a field is None if it is not known."""

    workspace_id: str = DEFAULT_WORKSPACE
    run_id: str | None = None
    pipeline_id: str | None = None
    deployment_id: str | None = None
    model_id: str | None = None


@dataclass(frozen=True, slots=True)
class OwnerContext:
    """Facts about owners that batches do not contain. Raises UsageError for a key outside NAMES."""

    defaults: Mapping[str, str] = field(default_factory=dict)
    """Values that are used if the resource of a record lacks the attribute."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Values that replace the resource's attributes, for facts that are known about the sender."""
    blob_uri: BlobUri | None = None
    """Returns the URI of a snapshot's blob; if None, the column contains the recorded `blob_uri`.
    """

    def __post_init__(self) -> None:
        for key in (*self.defaults, *self.overrides):
            if key not in NAMES:
                raise UsageError(
                    f"{key!a} is not an attribute of an owner: use one of {', '.join(NAMES)}"
                )


DEFAULT_CONTEXT = OwnerContext()
"""An empty context: owners come only from the batches."""


class OwnerResolver:
    """Reads the owners of a batch's spans from its resources."""

    def __init__(self, batch: Any, context: OwnerContext) -> None:
        """Read the resources of a batch, a value from `exactjson.loads`."""
        otel = batch.get("otel") if isinstance(batch, dict) else None
        self.whole = owner_of(resource_attributes(otel), context)
        """The owner of the batch, and of the records that have no resource of their own."""
        self._runs = [(n, owner_of(attributes, context)) for n, attributes in resources_of(otel)]

    def of_spans(self, count: int) -> Iterator[RowOwner]:
        """Yield the owner of each of the batch's spans, in order."""
        for number, owner in self._runs:
            yield from (owner for _ in range(min(number, count)))
            count -= min(number, count)
        yield from (self.whole for _ in range(count))


def owner_of(attributes: Mapping[str, Any], context: OwnerContext) -> RowOwner:
    """Return the owner that the attributes of a resource name."""
    values = {**context.defaults}
    for name in NAMES:
        if isinstance(value := attributes.get(name), str | int) and value != "":
            values[name] = text(value)
    values |= context.overrides
    workspace, *others = (bounded(value) if (value := values.get(n)) else None for n in NAMES)
    return RowOwner(workspace or DEFAULT_WORKSPACE, *others)


def resources_of(otel: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield, for each resource of a batch from OTLP, its number of spans and its attributes."""
    messages = otel.get("resource_spans") if isinstance(otel, dict) else None
    for message in messages if isinstance(messages, list) else []:
        if isinstance(message, dict):
            scopes = message.get("scope_spans")
            counts = [
                scope.get("spans", 0)
                for scope in (scopes if isinstance(scopes, list) else [])
                if isinstance(scope, dict)
            ]
            number = sum(count for count in counts if type(count) is int and count > 0)
            yield number, resource_attributes(message)


def resource_attributes(holder: Any) -> Mapping[str, Any]:
    """Return the attributes of the resource of a batch's `otel`, or of a member of it."""
    resource = holder.get("resource") if isinstance(holder, dict) else None
    attributes = resource.get("attributes") if isinstance(resource, dict) else None
    return attributes if isinstance(attributes, dict) else {}
