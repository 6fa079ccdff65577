"""The translator's two front doors: one batch to OTLP, a stream of OTLP to batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from .decode import Decoded, Regrouper
from .encode import DEFAULT, Options, encode_batch, file_name
from .events import Record
from .fast_decode import Whole, fast_decode
from .foreign import decode_foreign, encode_foreign
from .header import Counts
from .placement import Plan
from .typed import FallbackError


def to_otlp(
    batch: Record, plan: Plan, name: str | None = None, options: Options = DEFAULT
) -> list[ResourceSpans]:
    """The ResourceSpans of a batch: the very ones it came from if it was born in OTLP."""
    if name in (None, file_name(batch)):
        foreign = encode_foreign(batch)
        if foreign is not None:
            return foreign
    return encode_batch(batch, plan, name, options)


class FromOtlp:
    """Makes batches of a stream of OTLP messages."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.regrouper = Regrouper()
        self._copies: Counter[str] = Counter()

    def feed(self, messages: Iterable[ResourceSpans]) -> list[Decoded]:
        """Take the ResourceSpans of one TracesData; returns the batches that are complete now."""
        batches, foreign = self.regrouper.feed(messages)
        if foreign:
            batches.append(self._foreign(foreign))
        return batches

    def feed_whole(self, data: bytes) -> Whole | None:
        """Take the fast way for a serialised TracesData that holds one whole batch as we write it.

        Returns None where `feed` has to do it, or, with empty data, for a batch that came before.
        """
        try:
            whole = fast_decode(data)
        except FallbackError:
            return None
        regrouper = self.regrouper
        if whole.key in regrouper.open:
            return None
        if whole.key in regrouper.done:
            regrouper.duplicates += whole.spans + whole.marks + whole.snapshots
            return whole._replace(data=b"")
        regrouper.done.add(whole.key)
        return whole

    def finish(self) -> list[Decoded]:
        """The parts of batches of which the others never came."""
        return self.regrouper.finish()

    def _foreign(self, messages: list[ResourceSpans]) -> Decoded:
        batch = decode_foreign(messages)
        copy = self._copies[batch["batch_id"]]
        self._copies[batch["batch_id"]] += 1
        if copy:
            batch = decode_foreign(messages, copy)
        name = file_name(batch)
        counts = Counts(len(batch["spans"]), 0, 0, 0)
        return Decoded(batch, name or "", counts, counts)
