"""The top level of a batch: what its header says of it, and what rests beside that."""

from __future__ import annotations

from collections.abc import Collection

from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from .. import semconv as sc
from ..ids import is_id
from . import rest as rests
from .events import Record
from .header import LISTS, Counts, Header, file_of, said, split_resource, write_others
from .placement import stated_trace
from .values import sayable


class Top:
    """A batch without its records."""

    def __init__(
        self,
        fields: Record,
        *,
        file: str | None,
        own_trace_ids: bool,
        lists: Collection[str] = LISTS,
    ) -> None:
        """`fields` are the batch's, without those of its `lists` that hold records.

        `file` is its file's name where id and time do not give it; `own_trace_ids` says whether
        records carry a trace id of their own.
        """
        self._fields, self._lists = fields, lists
        self._file = file_of(file)
        self._own_trace_ids = own_trace_ids
        otel = fields.get("otel")
        self.otel: Record = otel if isinstance(otel, dict) else {}
        self.trace_id = stated_trace(self.otel.get("trace_id"))
        self.resource_attributes = _resource_attributes(self.otel)

    @property
    def created_ns(self) -> object:
        """When the batch was made, as far as a header can say it."""
        return said(self._fields)["created_ns"]

    def header(self, counts: Counts, rest: str = "") -> Header:
        """The header, with the part of the rest that it may carry."""
        session = self.otel.get("session")
        named = session if isinstance(session, str) and is_id(session) else None
        return Header(
            **said(self._fields),
            counts=counts,
            file=self._file,
            session=named,
            session_trace_id=stated_trace(self.otel.get("session_trace_id")),
            trace_id=self.trace_id,
            own_trace_ids=self._own_trace_ids,
            service_name_added=sc.SERVICE_NAME not in self.resource_attributes,
            rest=rest,
        )

    def rest(self) -> str:
        """The difference between the batch's top level and what the header says of it."""
        header = self.header(Counts(0, 0, 0, 0))
        decoded = decoded_top(header, as_decoded(self.resource_attributes))
        decoded |= {key: [] for key in LISTS if key not in self._lists}
        rest = rests.difference(self._fields, decoded)
        rests.nested(rest, rests.NESTED, self._fields.get("otel"), decoded.get("otel"))
        return rests.text_of(rest)


def _resource_attributes(otel: Record) -> Record:
    resource = otel.get("resource")
    attributes = resource.get("attributes") if isinstance(resource, dict) else None
    if not isinstance(attributes, dict):
        return {}
    return {key: value for key, value in attributes.items() if sayable(key)}


def as_decoded(attributes: Record) -> Record:
    """What decoding makes of a resource's attributes: what can't be said came out readable."""
    resource = Resource()
    write_others(resource.attributes, attributes)
    return split_resource(resource.attributes)[1]


def decoded_top(header: Header, resource_attributes: Record) -> Record:
    """The batch's top level that a header and its resource say, lists and rest aside."""
    otel: Record = {}
    if header.session is not None:
        otel["session"] = header.session
    if header.session_trace_id:
        otel["session_trace_id"] = header.session_trace_id.hex()
    if header.trace_id:
        otel["trace_id"] = header.trace_id.hex()
    if resource_attributes:
        otel["resource"] = {"attributes": resource_attributes}
    top = header.fields()
    if otel:
        top["otel"] = otel
    return top
