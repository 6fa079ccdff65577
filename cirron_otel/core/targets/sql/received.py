"""Recognise the parts of a collector's batch that another collector has already stored.

A collector groups the requests that it receives into batches by their arrival, so two collectors
put the same request into different batches. A part is a ResourceSpans of a request with its spans,
or a mark that was created from a log record. Both are stored unchanged, so equal parts have equal
bytes. The batch of a recording program has no parts: it is recognised by its name and content.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from ...delivery.batch_target import SealedBatch
from ...translator.foreign.messages import RECEIVED, RESOURCE_SPANS
from ...translator.logs.log_marks import LOG, LOGS
from .ownership import OwnerContext

_DIGEST_BYTES = 16
_RECEIVED = b'"%b":' % RECEIVED.encode()
_SCOPE = "scope"

_encode = msgspec.json.Encoder().encode
_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_lists = msgspec.json.Decoder(list[msgspec.Raw])
_any = msgspec.json.Decoder()


class _Scope(msgspec.Struct):
    spans: int = 0


class _Resource(msgspec.Struct):
    scope_spans: list[_Scope] = []


_resource = msgspec.json.Decoder(_Resource)


class RequestPart(NamedTuple):
    """A part of a batch: a ResourceSpans with its spans, or a mark."""

    digest: bytes
    """A digest of the part's content, its owner, and the number of equal parts before it."""
    spans: range
    """The indexes of the part's spans in the batch."""
    resource: int | None = None
    """The index of the part's ResourceSpans in the batch."""
    mark: int | None = None
    """The index of the mark in the batch."""


def parts_of(batch: SealedBatch, context: OwnerContext) -> list[RequestPart]:
    """Return the parts of a batch; [] unless a collector created the batch from requests."""
    if _RECEIVED not in batch.data:
        return []
    try:
        document = _objects.decode(batch.data)
        otel = _objects.decode(document["otel"])
        if RECEIVED not in otel:
            return []
        if RESOURCE_SPANS in otel:
            contents = list(_resources(_lists.decode(otel[RESOURCE_SPANS]), document))
        else:
            contents = list(_marks(_objects.decode(otel[LOGS]), document))
    except (KeyError, ValueError, TypeError, IndexError, AttributeError, RecursionError):
        return []  # another program wrote the batch: recognise it by its name and content only
    return _digested(contents, context)


_Found = tuple[RequestPart, Collection[bytes]]
"""A part whose digest is still missing, and its content."""


def _resources(resources: list[msgspec.Raw], top: dict[str, msgspec.Raw]) -> Iterator[_Found]:
    spans = _lists.decode(top["spans"])
    counts = [sum(s.spans for s in _resource.decode(each).scope_spans) for each in resources]
    if any(count < 0 for count in counts) or sum(counts) != len(spans):
        raise ValueError
    for number, (end, count) in enumerate(zip(accumulate(counts), counts, strict=True)):
        places = range(end - count, end)
        content = [bytes(resources[number]), *(bytes(spans[place]) for place in places)]
        yield RequestPart(b"", places, resource=number), content


def _marks(logs: dict[str, msgspec.Raw], top: dict[str, msgspec.Raw]) -> Iterator[_Found]:
    """Yield the marks.

    Their content includes the scope itself, since the index of a scope differs between batches.
    """
    scopes = [bytes(each) for each in _lists.decode(logs.pop("scopes"))]
    resource = b"".join(bytes(each) for each in logs.values())
    for number, raw in enumerate(_lists.decode(top["marks"])):
        mark = _any.decode(raw)
        scope = mark["otel"][LOG].pop(_SCOPE, 0)
        yield RequestPart(b"", range(0), mark=number), [resource, scopes[scope], _encode(mark)]


def _digested(found: list[_Found], context: OwnerContext) -> list[RequestPart]:
    owner = repr((sorted(context.defaults.items()), sorted(context.overrides.items())))
    begun = hashlib.blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES)
    copies: Counter[bytes] = Counter()
    parts = []
    for part, content in found:
        hashed = begun.copy()
        for each in content:
            hashed.update(len(each).to_bytes(8, "little") + each)
        equal = hashed.digest()
        hashed.update(copies[equal].to_bytes(8, "little"))
        copies[equal] += 1
        parts.append(part._replace(digest=hashed.digest()))
    return parts


def without_parts(data: bytes, known: Collection[RequestPart]) -> bytes:
    """Return the batch `data` without the parts in `known`."""
    document: dict[str, Any] = dict(_objects.decode(data))
    otel: dict[str, Any] = dict(_objects.decode(document["otel"]))
    _leave_out(document, "spans", {place for part in known for place in part.spans})
    _leave_out(document, "marks", {part.mark for part in known})
    if RESOURCE_SPANS in otel:
        _leave_out(otel, RESOURCE_SPANS, {part.resource for part in known})
    return _encode(document | {"otel": otel})


def _leave_out(record: dict[str, Any], key: str, places: set[int | None]) -> None:
    values = _lists.decode(record[key])
    record[key] = [each for place, each in enumerate(values) if place not in places]
