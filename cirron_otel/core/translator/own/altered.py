"""Report spans that were Cirron records until a component in transit changed them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from .... import semconv as sc
from ..header import read_scope
from .encode import file_name

_MOST_NAMED = 1000
_OTHERS = "other batches"


class Altered:
    """Counts spans whose OTLP scope is a batch's header but that are not records of that batch."""

    def __init__(self) -> None:
        self._spans: Counter[str] = Counter()
        """The number of spans, by the file name of their batch."""

    def look_at(self, messages: Iterable[ResourceSpans]) -> None:
        """Count the altered spans in messages from which all Cirron records have been removed."""
        for scope_spans in (each for message in messages for each in message.scope_spans):
            scope = scope_spans.scope
            if scope_spans.spans and any(p.key == sc.BATCH_SPANS for p in scope.attributes):
                name = _name(scope)
                if name not in self._spans and len(self._spans) >= _MOST_NAMED:
                    name = _OTHERS
                self._spans[name] += len(scope_spans.spans)

    def losses(self) -> Iterable[str]:
        """Yield one line per span; all lines of a batch are identical."""
        text = "records of {}, changed in transit and stored as spans of another origin"
        return (text.format(name) for name in self._spans.elements())


def _name(scope: InstrumentationScope) -> str:
    header = read_scope(scope)
    if header is None:
        return "a batch whose header was changed"
    return header.file or file_name(header.fields()) or "a batch without a name"
