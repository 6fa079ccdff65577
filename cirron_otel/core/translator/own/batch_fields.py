"""Batch-level fields: some are stored in the OTLP header, all others in a residual."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from .... import exactjson
from .... import semconv as sc
from ....ids import is_id
from ...placement.batch_placement import stated_trace
from .. import residual as residuals
from ..events import Record
from ..header import (
    LISTS,
    Counts,
    Header,
    file_of,
    resource_attributes,
    said,
    split_resource,
    write_others,
)
from ..values import is_int
from .parts import Part


def file_name(batch: Record) -> str | None:
    """Derive the name of a batch's file from its id and time; None if either is not valid."""
    created, batch_id = batch.get("created_ns"), batch.get("batch_id")
    if not is_int(created, 0) or not isinstance(batch_id, str):
        return None
    return f"{created:020d}-{batch_id}.json"


class BatchLevelFields:
    """The fields of a batch except its records."""

    def __init__(
        self,
        fields: Record,
        *,
        file: str | None,
        own_trace_ids: bool,
        service_name: str,
        lists: Collection[str] = LISTS,
        corrected: Mapping[str, list[Record]] | None = None,
    ) -> None:
        """Prepare the batch-level `fields`, without the record lists, whose keys are in `lists`.

        The `corrected` lists are written into the residual too, since decoding the spans would not
        restore them.

        `file` is the name of the file, if the batch's id and time do not determine it.
        `own_trace_ids` is whether records have their own trace ids. `service_name` is added to a
        resource that has no service name.
        """
        self._fields, self._lists = fields, lists
        self._said = said(fields)
        self._file = file_of(file)
        self._corrected = corrected or {}
        self._own_trace_ids, self._service_name = own_trace_ids, service_name
        otel = fields.get("otel")
        self.otel: Record = otel if isinstance(otel, dict) else {}
        self.trace_id = stated_trace(self.otel["trace_id"]) if "trace_id" in self.otel else b""
        self.resource_attributes = resource_attributes(self.otel) if self.otel else {}

    def repeat(self, sessions: int) -> None:
        """Omit long fields so that their copies in all sessions together fit into one span.

        Each session repeats the header and the resource. The residual, which is written only once,
        contains the omitted fields.
        """
        if sessions < 2:
            return
        room = sc.MAX_SPAN_BYTES // sessions
        attributes, self.resource_attributes = self.resource_attributes, {}
        for key, value in attributes.items():
            size = len(exactjson.dumps_ascii({key: value}))
            if size <= room:
                room -= size
                self.resource_attributes[key] = value
        texts = [self._said[key] for key in ("sdk_version", "batch_id")]
        if sessions * sum(len(str(text)) for text in texts) > sc.MAX_SPAN_BYTES:
            self._shorten()

    def omit(self, part: Part) -> None:
        """Omit the fields that the complete batch's header omits: both headers are then equal."""
        items = self.resource_attributes.items()
        self.resource_attributes = {key: value for key, value in items if key not in part.omitted}
        if part.short_header:
            self._shorten()

    def _shorten(self) -> None:
        self._said |= {"sdk_version": "", "batch_id": None}

    @property
    def created_ns(self) -> object:
        """The creation time of the batch in ns; None if the header cannot store it."""
        return self._said["created_ns"]

    def header(self, counts: Counts, residual: str = "") -> Header:
        """Return the header with these counts and this residual."""
        session, joined = self.otel.get("session"), self.otel.get("session_trace_id")
        is_named = sc.SERVICE_NAME in self.resource_attributes
        return Header(
            **self._said,
            counts=counts,
            file=self._file,
            session=session if isinstance(session, str) and is_id(session) else None,
            session_trace_id=stated_trace(joined) if joined is not None else b"",
            trace_id=self.trace_id,
            own_trace_ids=self._own_trace_ids,
            added_service_name=None if is_named else self._service_name,
            residual=residual,
        )

    def residual(self) -> str:
        """Return the difference between the batch and what its header restores, as JSON text."""
        if self._fields == self._said and not self._corrected and len(self._lists) == len(LISTS):
            return ""
        header = self.header(Counts(0, 0, 0, 0))
        decoded = decoded_fields(header, as_decoded(self.resource_attributes))
        decoded |= {key: [] for key in LISTS if key not in self._lists}
        residual = residuals.difference(self._fields, decoded)
        residuals.nested(residual, residuals.NESTED, self._fields.get("otel"), decoded.get("otel"))
        if self._corrected:
            residual["set"] = residual.get("set", {}) | self._corrected
        return residuals.text_of(residual)


def as_decoded(attributes: Record) -> Record:
    """Return resource attributes as a decoder reads them from OTLP.

    Values that OTLP cannot represent become readable text.
    """
    resource = Resource()
    write_others(resource.attributes, attributes)
    return split_resource(resource.attributes)[1]


def decoded_fields(header: Header, resource_attributes: Record) -> Record:
    """Return the batch-level fields in a header and its resource.

    They contain no lists of records, and the residual is not applied.
    """
    otel: Record = {}
    if header.session is not None:
        otel["session"] = header.session
    if header.session_trace_id:
        otel["session_trace_id"] = header.session_trace_id.hex()
    if header.trace_id:
        otel["trace_id"] = header.trace_id.hex()
    if resource_attributes:
        otel["resource"] = {"attributes": resource_attributes}
    fields = header.fields()
    if otel:
        fields["otel"] = otel
    return fields
