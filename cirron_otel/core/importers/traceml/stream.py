"""The import of one connection of TraceML's: frames in, batches out, without I/O.

```python
stream = TraceMLStream()
for payload in payloads:              # the payloads of the connection's frames, in their order
    for batch in stream.feed(payload):
        spool.write(batch.data, batch.name)
for batch in stream.finish(rest):     # the connection has ended, within a frame if there is a rest
    spool.write(batch.data, batch.name)
```

`FrameDecoder` (framing.py) cuts the bytes of a connection into payloads. The batches, and all ids
in them, depend on the bytes of the stream only, and not on the time or the size of the reads, so
that a job that is received live has the same batches as the import of its recorded bytes.
A batch is complete after 256 frames, or 256 kB, or when the sender's clock has advanced by two
seconds, whichever comes first. `state` and `resume` carry a stream over to another process.

The marks and attributes are described in docs/traceml.md.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Final

import msgspec

from ....errors import InputError
from ....ids import digest
from ....semconv import SESSION
from ...records.problems import ReadingProblem
from ..sealing import ImportedBatch
from .batch_parts import FrameText, batches_of
from .envelopes import HISTORY_CONTROL, RANK_FINISHED, Envelope, envelopes_of, shown
from .framing import MissingFrames, OversizedFrame
from .numbers import identifier, text, time_ns
from .payloads import read_payload
from .records import RecordBuilder, StreamIdentity
from .sample_rows import ENVIRONMENT_TABLE
from .step_rows import STEP_TABLE, step_number

BATCH_FRAMES: Final = 256
BATCH_BYTES: Final = 256_000
BATCH_NS: Final = 2_000_000_000
_ENVIRONMENT: Final = (
    "topology", "distributed_initialized", "distributed_backend", "training_strategy",
    "strategy_source", "strategy_confidence",
)  # fmt: skip
_MAX_REPORTED: Final = 1_000
_ERROR: Final = 2

OnFinding = Callable[[ReadingProblem], None]


class StreamState(msgspec.Struct):
    """The state of a stream after some of its frames; its size is bounded."""

    identity: StreamIdentity
    next_frame: int = 0
    environment: dict[str, Any] = {}
    """Attributes of the session, from RuntimeEnvironmentTable."""
    start_ns: int | None = None
    end_ns: int | None = None
    is_finished: bool = False
    """Whether the rank has sent `rank_finished`."""
    reported: list[str] = []
    """The problems that were reported already."""
    peaks: dict[int, dict[str, Any]] = {}
    """The attributes of step_memory rows whose steps have not arrived, by step."""
    steps: dict[int, str] = {}
    """The ids of steps whose step_memory rows have not arrived, by step."""
    first_step: int | None = None
    last_step: int | None = None
    """The highest number of a step; steps are sent in their order."""
    missing_steps: int = 0
    """The number of steps between the first and the last that did not arrive in their order."""


class TraceMLStream:
    """Imports the frames of one connection; see the module's docstring."""

    def __init__(self, name: str = "traceml", on_finding: OnFinding = lambda _: None) -> None:
        """Report problems to `on_finding` under `name`, each kind of problem once."""
        self._name, self._on_finding = name, on_finding
        self._state: StreamState | None = None
        self._frames: list[FrameText] = []
        self._size = 0
        self._first_ns: int | None = None
        self._builder: RecordBuilder | None = None
        self._sealed = b""
        self.frames = 0
        """The number of frames so far."""
        self.rows = 0
        """The number of rows so far."""

    @property
    def identity(self) -> StreamIdentity | None:
        """The process that sends the stream; None before the first frame."""
        return self._state.identity if self._state is not None else None

    @property
    def end_ns(self) -> int:
        """The end of the last record in a batch, Unix nanoseconds; 0 without records."""
        return (self._state.end_ns or 0) if self._state is not None else 0

    @property
    def is_finished(self) -> bool:
        """Whether the rank has sent `rank_finished`."""
        return self._state is not None and self._state.is_finished

    @property
    def step_range(self) -> tuple[int, int] | None:
        """The numbers of the first and the last step; None before the first step."""
        state = self._state
        if state is None or state.first_step is None or state.last_step is None:
            return None
        return state.first_step, state.last_step

    @property
    def missing_steps(self) -> int:
        """The number of steps between the first and the last that did not arrive."""
        return self._state.missing_steps if self._state is not None else 0

    def state(self) -> bytes:
        """Return what `resume` needs to continue after the last batch, in at most about 300 kB.

        Frames after the last batch must be fed again.
        """
        return self._sealed

    @classmethod
    def resume(
        cls, state: bytes, name: str = "traceml", on_finding: OnFinding = lambda _: None
    ) -> TraceMLStream:
        """Continue a stream after its last batch. Raises InputError if `state` is damaged."""
        stream = cls(name, on_finding)
        if state:
            try:
                stream._state = msgspec.json.decode(state, type=StreamState)
                stream._sealed = state
            except (msgspec.DecodeError, ValueError) as error:
                raise InputError(
                    f"not the state of a stream: {error}; expected that of TraceMLStream.state"
                ) from None
        return stream

    def feed(self, payload: bytes | OversizedFrame | MissingFrames) -> list[ImportedBatch]:
        """Add a frame's payload; return the batches that it completes, usually none."""
        self.frames += 1
        if isinstance(payload, OversizedFrame | MissingFrames):
            if isinstance(payload, OversizedFrame):
                message = f"a frame of {payload.size} bytes: expected fewer, not read"
                self._report("too-long", message)
            else:
                self._report("missing", f"frames of {payload.size} bytes are missing")
            if self._state is not None:
                omitted = b'{"omitted":%d}' % payload.size
                self._frames.append(FrameText(self._state.next_frame, omitted))
                self._state.next_frame += 1
            return []
        decoded = read_payload(payload)
        envelopes = [] if decoded.problem else list(envelopes_of(decoded.value))
        if self._state is None:
            self._state = StreamState(_identity(payload, envelopes))
        state = self._state
        if self._builder is None:
            self._builder = RecordBuilder(state.identity, state.peaks, state.steps)
        if decoded.problem:
            self._report("not-decoded", decoded.problem)
        self._builder.begin_frame(state.next_frame)
        for envelope in envelopes:
            self._add(envelope)
        self._frames.append(FrameText(state.next_frame, decoded.text))
        self._size += len(decoded.text)
        state.next_frame += 1
        return self._seal() if self._is_complete(envelopes) else []

    def finish(self, rest: bytes = b"") -> list[ImportedBatch]:
        """End the stream; return its last batches, with the session's span.

        `rest` are the bytes of a torn last frame, which are kept. A stream without any frame has
        no batches.
        """
        state = self._state
        if rest:
            self._report("torn", f"the last frame is incomplete: {len(rest)} bytes")
        if state is None:
            return []
        self._builder = self._builder or RecordBuilder(state.identity, state.peaks, state.steps)
        builder = self._builder
        builder.begin_frame(state.next_frame)
        builder.add_pending_peaks(max(builder.end_ns or 0, state.end_ns or 0))
        self._note_times(builder)
        builder.spans.append(self._session_span(state))
        if rest:
            self._frames.append(
                FrameText(state.next_frame, b'{"torn":"' + base64.b64encode(rest) + b'"}')
            )
        return self._seal({"end": True})

    def _is_complete(self, envelopes: list[Envelope]) -> bool:
        if len(self._frames) >= BATCH_FRAMES or self._size >= BATCH_BYTES:
            return True
        times = [time_ns(envelope.meta.get("timestamp")) for envelope in envelopes]
        latest = max((each for each in times if each is not None), default=None)
        if latest is None:
            return False
        if self._first_ns is None:
            self._first_ns = latest
        return latest - self._first_ns >= BATCH_NS

    def _seal(self, last: dict[str, Any] | None = None) -> list[ImportedBatch]:
        state, builder = self._state, self._builder
        if state is None or builder is None:
            return []
        builder.place_peaks()
        self._note_times(builder)
        batches = list(
            batches_of(
                builder.spans, builder.marks, self._frames, _otel_of(state.identity),
                state.identity.members(), last or {},
            )
        )  # fmt: skip
        self._builder, self._frames, self._size, self._first_ns = None, [], 0, None
        self._sealed = msgspec.json.encode(state)
        return batches

    def _add(self, envelope: Envelope) -> None:
        state, builder = self._state, self._builder
        if state is None or builder is None:
            return
        for problem in envelope.unknown:
            self._report("unknown", f"{problem}: kept, not converted")
        sent_ns = time_ns(envelope.meta.get("timestamp"))
        if envelope.control is not None:
            builder.note_time(sent_ns)
            if envelope.control == RANK_FINISHED:
                state.is_finished = True
            elif envelope.control != HISTORY_CONTROL:
                self._report("unknown", f"control message {shown(envelope.control)}: kept")
            return
        builder.note_time(sent_ns)
        for row in envelope.rows:
            self.rows += 1
            if row.table == ENVIRONMENT_TABLE:
                self._set_environment(row.value)
            elif row.table == STEP_TABLE:
                self._note_step(state, step_number(row.value))
            problem = builder.add_row(envelope.meta, row, sent_ns)
            if problem:
                self._report("unknown", problem)

    def _note_step(self, state: StreamState, step: int | None) -> None:
        if step is None:
            return
        if state.last_step is None:
            state.first_step = state.last_step = step
        elif step > state.last_step + 1:
            first, last = state.last_step + 1, step - 1
            state.missing_steps += last - first + 1
            steps = f"step {first} is" if first == last else f"steps {first} to {last} are"
            self._report("missing-steps", f"{steps} missing")
        state.last_step = max(state.last_step, step)

    def _set_environment(self, row: dict[str, Any]) -> None:
        if self._state is not None:
            attrs: dict[str, Any] = {}
            for key in _ENVIRONMENT:
                value = row.get(key)
                known = value if isinstance(value, bool) else text(value)
                if known is not None:
                    attrs[f"traceml.{key}"] = known
            self._state.environment = attrs

    def _note_times(self, builder: RecordBuilder) -> None:
        state = self._state
        if state is None or builder.start_ns is None or builder.end_ns is None:
            return
        starts = [builder.start_ns, state.start_ns]
        state.start_ns = min(each for each in starts if each is not None)
        state.end_ns = max(builder.end_ns, state.end_ns or 0)

    def _session_span(self, state: StreamState) -> dict[str, Any]:
        identity = state.identity
        attrs: dict[str, Any] = {"source": "traceml"}
        stamp = {"traceml.session_id": identity.session_id, "traceml.run_nonce": identity.run_nonce}
        attrs |= {key: value for key, value in stamp.items() if value is not None}
        attrs |= state.environment
        otel: dict[str, Any] = {}
        if identity.is_stamped and not state.is_finished:
            attrs["incomplete"] = True
            message = "incomplete: TraceML has not sent rank_finished"
            otel = {"otel": {"status": {"code": _ERROR, "message": message}}}
        start_ns, end_ns = state.start_ns or 0, state.end_ns or 0
        return {
            "id": identity.session, "name": SESSION, "parent_id": None, "index": None,
            "start_ns": start_ns, "end_ns": end_ns, "cpu_ns": None, "gpu_ns": None,
            "memory_peak_bytes": None, "thread_id": None, "pid": identity.pid,
            "rank": identity.rank, "attrs": attrs, "mark_ids": [], **otel,
        }  # fmt: skip

    def _report(self, code: str, message: str) -> None:
        """Report a problem once for each stream."""
        key = f"{code} {message}"
        reported = self._state.reported if self._state is not None else []
        if key in reported or len(reported) >= _MAX_REPORTED:
            return
        reported.append(key)
        self._on_finding(ReadingProblem(self._name, code, message))


def _identity(payload: bytes, envelopes: list[Envelope]) -> StreamIdentity:
    """Return the identity of a stream by its first frame."""
    meta = next((envelope.meta for envelope in envelopes if envelope.meta), {})
    stream = digest("traceml-stream", payload)[:16].hex()
    stamp = text(meta.get("session_id")), text(meta.get("run_nonce"))
    trace = session = stream
    if None not in stamp:
        trace = digest("traceml-run", stamp[0] or "", stamp[1] or "")[:16].hex()
        session = stream[:16] + trace[16:]
    rank = identifier(meta.get("global_rank"))
    return StreamIdentity(
        stream=stream,
        session=session,
        trace=trace,
        rank=identifier(meta.get("rank")) if rank is None else rank,
        pid=identifier(meta.get("pid")),
        host=text(meta.get("hostname")),
        world_size=identifier(meta.get("world_size")),
        local_rank=identifier(meta.get("local_rank")),
        session_id=stamp[0],
        run_nonce=stamp[1],
    )


def _otel_of(identity: StreamIdentity) -> dict[str, Any]:
    """Return the batch's `otel`: its session, its trace, and the resource's attributes."""
    values: dict[str, Any] = {
        "host.name": identity.host,
        "cirron.world_size": identity.world_size,
        "cirron.local_rank": identity.local_rank,
    }
    otel: dict[str, Any] = {"session": identity.session}
    if identity.is_stamped:
        values |= {"cirron.run.id": identity.trace, "cirron.run.name": identity.session_id}
        otel |= {"session_trace_id": identity.trace, "trace_id": identity.trace}
    attributes = {key: value for key, value in values.items() if value is not None}
    return otel | {"resource": {"attributes": attributes}}
