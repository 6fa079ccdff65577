"""The entry points of the translator: encode a batch as OTLP, decode a stream of OTLP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from google.protobuf.message import DecodeError, EncodeError
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from ... import exactjson
from ...errors import InputError
from ...ids import digest
from ..placement.batch_placement import Plan
from ..records.schema import SCHEMA_VERSION
from .events import Record
from .foreign.batch_header import Headed, header_of, take_headed
from .foreign.messages import RESOURCE_SPANS, decode_foreign, messages_of
from .header import LISTS, Counts
from .own.altered import Altered
from .own.batch_fields import file_name
from .own.decode import Decoded, Known, Regrouper, nothing_known
from .own.encode import DEFAULT, Options, encode_batch
from .own.fast_decode import DecodedBatch, fast_decode
from .own.fast_encode import fast_encode, typed_batch
from .own.handed_out import Recall
from .own.own import plan_of, plan_of_typed
from .typed import NotCanonicalError


def to_otlp(
    batch: Record, plan: Plan, name: str | None = None, options: Options = DEFAULT
) -> list[ResourceSpans]:
    """Encode a batch as ResourceSpans.

    For a batch that was created from OTLP, this returns the original messages, preceded by a header
    if the messages alone do not restore the batch.
    """
    if name in (None, file_name(batch)):
        foreign = encode_foreign(batch)
        if foreign is not None and _is_readable(foreign):
            return foreign
    return encode_batch(batch, plan, name, options)


def encode_foreign(batch: Record) -> list[ResourceSpans] | None:
    """Return the original messages of a batch that was created from OTLP.

    Returns None for any other batch, and if the messages do not restore the batch.
    """
    messages = messages_of(batch)
    if messages is None:
        return None
    otel = batch["otel"]
    if otel.keys() == {RESOURCE_SPANS} and _comes_back(messages, batch):
        return messages
    header = header_of(batch, len(messages))
    if header is None or not _comes_back([header, *messages], batch):
        return None
    return [header, *messages]


def _comes_back(messages: list[ResourceSpans], batch: Record) -> bool:
    """Whether decoding the messages restores this batch and nothing else."""
    reader = FromOtlp()
    decoded = reader.feed(messages) + reader.finish()
    return len(decoded) == 1 and exactjson.equal(decoded[0].batch, batch)


def _is_readable(messages: list[ResourceSpans]) -> bool:
    """Whether a protobuf parser accepts the messages; parsers reject more than 100 levels."""
    try:
        TracesData.FromString(TracesData(resource_spans=messages).SerializeToString())
    except (DecodeError, EncodeError):
        return False
    return True


def encode_own(data: bytes, name: str | None = None, options: Options = DEFAULT) -> bytes:
    """Encode the bytes of a batch that names its session as a serialised TracesData.

    The result depends only on the batch, and is the same when its file is converted. `name` is the
    name of the file. Raises InputError if the bytes are not a batch, or if the batch does not name
    its session.
    """
    try:
        typed = typed_batch(data)
        plan = plan_of_typed(typed)
        if plan is not None:
            return fast_encode(typed, plan, name, options)
    except NotCanonicalError:
        pass
    try:
        batch = exactjson.loads(data)
        _check(batch)
        plan = plan_of(batch)
        if plan is None:
            raise InputError("the batch does not name its session: expected an id in otel.session")
        messages = to_otlp(batch, plan, name, options)
        return bytes(TracesData(resource_spans=messages).SerializeToString())
    except RecursionError:
        raise InputError("the batch is nested too deeply to be processed") from None


def _check(batch: object) -> None:
    version = batch.get("schema_version") if isinstance(batch, dict) else None
    if not isinstance(batch, dict) or type(version) is not int or version != SCHEMA_VERSION:
        raise InputError(f"not a batch of schema version {SCHEMA_VERSION}")
    for key in LISTS:
        if not isinstance(batch.get(key, []), list):
            raise InputError(f"not a batch: {key} is not a list")


class FromOtlp:
    """Decodes a stream of OTLP messages to batches."""

    def __init__(self, known: Known = nothing_known, recall: Recall | None = None) -> None:
        """Create an empty reader. Cirron records that are `known` are omitted.

        `recall` returns a batch that was handed out earlier; without `recall`, these batches stay
        in memory.
        """
        self.regrouper = Regrouper(known, recall)
        self._copies: Counter[str] = Counter()
        self._headed: set[bytes] = set()
        """Digests of the headers that arrived with their batches."""
        self.headers_alone = 0
        """The number of headers that arrived without their batch's messages."""
        self.altered = Altered()

    def feed(self, messages: Iterable[ResourceSpans]) -> list[Decoded]:
        """Add the ResourceSpans of one TracesData; return the batches that are now complete."""
        headed = take_headed(messages)
        self.headers_alone += headed.alone
        batches, foreign = self.regrouper.feed(headed.others)
        batches += self._new(headed)
        if foreign:
            self.altered.look_at(foreign)
            batches.append(self._foreign(foreign))
        return batches

    def feed_whole(self, data: bytes) -> DecodedBatch | None:
        """Decode a serialised TracesData on the fast path, if it is one complete Cirron batch.

        Returns None if `feed` has to decode it. For a repeated batch, the result has empty `data`.
        """
        try:
            whole = fast_decode(data)
        except NotCanonicalError:
            return None
        regrouper = self.regrouper
        if whole.key in regrouper.open:
            return None
        if whole.key in regrouper.done:
            if not regrouper.done.has_wire(whole.key, data):
                return None
            regrouper.duplicates += whole.spans + whole.marks + whole.snapshots
            return whole._replace(data=b"")
        regrouper.done.is_written()
        regrouper.done.add(whole.key, whole.name, whole.data, data)
        return whole

    def finish(self) -> list[Decoded]:
        """Return the batches that are still incomplete."""
        return self.regrouper.finish()

    def _foreign(self, messages: list[ResourceSpans]) -> Decoded:
        batch = decode_foreign(messages)
        copy = self._copies[batch["batch_id"]]
        self._copies[batch["batch_id"]] += 1
        if copy:
            batch = decode_foreign(messages, copy)
        return _decoded(batch)

    def _new(self, headed: Headed) -> list[Decoded]:
        """Return the batches with a header that are new, and count repeated ones as duplicates."""
        self.regrouper.duplicates += headed.duplicates
        new = []
        for header, batch in headed.batches.items():
            key = digest(header)
            if key in self._headed:
                self.regrouper.duplicates += len(batch["spans"])
            else:
                self._headed.add(key)
                new.append(_decoded(batch))
        return new


def _decoded(batch: Record) -> Decoded:
    counts = Counts(len(batch["spans"]), 0, 0, 0)
    return Decoded(batch, file_name(batch) or "", counts, counts)
