"""Build batches from the threads' buffers; used only by the owner of the flush side (`ownership`).

The builder takes the new records, tracks open scopes, assigns ids to marks, and assembles batches.
It writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from msgspec import UNSET
from opentelemetry.trace import StatusCode

from ..session.errors import record_error
from ..snapshots.recorder import Snapshots
from ..tracing.buffers import forget_newest, registry, spared_scopes
from ..tracing.clock import now, wall, wall_now
from ..tracing.enclosing import EnclosingSpan
from ..tracing.foreign_spans import ForeignSpans, OpenForeignSpan, foreign_row
from ..tracing.open_scopes import pinned
from ..tracing.phase import Phase, is_held
from ..tracing.rare_work import rare_work
from ..tracing.scope import NO_SESSION, Scope
from ..tracing.step_places import StepPlaces, has_loop, is_step
from ..tracing.traces import Trace
from ..tracing.trainings import NUMBERED, trainings
from .assembly import BatchAssembly, Naming, random_name
from .background import Background, distribute
from .batch_otel import BatchOtel
from .drain import BufferDrain, Drained, FlushChanges
from .export_budget import ExportBudget
from .flush_result import FlushResult, RecordCounts, SessionOrigin
from .ownership import FlushOwnership
from .rows import SnapshotRow, SpanRow
from .scope_rows import default_trace, sort_scopes, span_order
from .span_rows import span_row
from .step_figures import StepFigures

INCOMPLETE = "incomplete: the session ended before this scope did"
snapshot_order = attrgetter("ts_ns", "id")
"""The canonical order of snapshots."""
MOST_ATTEMPTS = 2
"""Maximum number of attempts to build batches from the same records.

The records themselves may be the cause of the failure.
"""


class FlushBuilder:
    """Takes records out of the buffers and builds batches, one flush at a time."""

    def __init__(
        self,
        origin: SessionOrigin,
        foreign: ForeignSpans,
        *,
        overhead_every: int = 1,
        thinner: Any = None,
        budget: ExportBudget | None = None,
        recent: Any = None,
        naming: Naming | None = None,
        snapshots: Snapshots | None = None,
        announces_open: bool = True,
        ownership: FlushOwnership | None = None,
    ) -> None:
        """Prepare to build batches.

        One in every `overhead_every` scopes gets a mark with the SDK's own time; 0 turns these
        marks off. `budget` chooses the steps whose export is a summary. `naming` returns the ids
        and times of batches; by default, ids are random. With `announces_open`, batches contain
        open sessions and epochs, so that a backend shows them before they end. The owner in
        `ownership` calls all methods but `set_rank`.
        """
        self.ownership = ownership or FlushOwnership()
        self._origin = origin
        self._foreign = foreign
        common = origin.pid, origin.rank, overhead_every
        self._assembly = BatchAssembly(common, origin.session, naming or random_name(wall_now))
        self._assembly.checkpoint = self.ownership.checkpoint
        self._thinner = thinner
        self._budget = budget
        self._recent = recent
        self._snapshots = snapshots
        self.otel = BatchOtel(origin, announces_open=announces_open)
        self._drain = BufferDrain()
        self._drained: Drained | None = None
        self._change = FlushChanges()
        self._attempts = 0
        self.retains_records = False
        """Whether results also contain the scopes and marks themselves, for metrics."""
        self.before_loop: Callable[[], None] | None = None
        """Called once, before the records of the first loop are built."""
        self.latest: FlushResult | None = None
        """The last result, which must be sealed even if the flush thread dies first."""
        self._open: dict[Scope, int] = {origin.session: 0}
        """The open scopes, with the number of flushes that have seen each of them open."""
        self._mark_ids: dict[Scope, bytearray] = {}
        """For each open scope, the first halves of the ids of its sealed marks."""
        self._announced: set[Scope] = set()
        self._journalled: set[str] = set()
        self._closed: list[Scope] = []
        """The scopes that were open at the end of the session."""
        self._scopes = 0
        self._places, self._figures = StepPlaces(), StepFigures()
        self.spans = self.marks = self.snapshots = 0
        """Numbers of records in batches so far."""
        self.spans_lost = 0
        """Scopes that could not be converted to records."""
        self.marks_lost = 0
        """Marks whose scope was dropped, or whose value turned out to be invalid."""
        self.snapshots_lost = 0
        """Snapshots whose scope was dropped, or that could not be converted to records."""
        self.overhead_ns = 0
        """The SDK's own time inside ended scopes, in ns: the sum for the session and its direct
        children, whose values include all scopes inside them."""
        self.background = Background()
        """The time that the training thread loses to flushes."""
        self._inside: dict[Any, int] = {}
        """The SDK's own time inside open scopes, apart from their own hooks."""
        self.left = RecordCounts()
        """Records that were lost because the process ended."""

    def set_rank(self, rank: int) -> None:
        """Set the rank of all later records."""
        self._origin.rank = rank
        self._assembly.set_rank(rank)

    def collect(self, *, is_last: bool = False, is_portion: bool = False) -> FlushResult:
        """Build batches from all records made since the last call.

        `is_last` also closes all open scopes. `is_portion` takes only one portion, the oldest
        records. If the call raises, or its thread dies, `resume` continues with the records taken.
        """
        self.ownership.check()
        try:
            if self._drained is None:
                self._drained = self._take(is_last, is_portion)
            self._change = self._unchanged()
            result = self.latest = self._assemble(self._drained, self._change)
        except Exception:
            self._attempts += 1
            if self._attempts >= MOST_ATTEMPTS:
                self._give_up()
            raise
        self._note(result)
        return result

    def resume(self) -> FlushResult | None:
        """Return the unsealed result of an interrupted flush; None if there is none."""
        left = self.latest
        if left is not None and not left.is_noted:
            self._note(left)
        elif self._drained is not None:
            return self.collect()
        return left if left is not None and not left.is_sealed else None

    def _assemble(self, drained: Drained, change: FlushChanges) -> FlushResult:
        """Build batches from the drained records. It may be called again with the same records."""
        sort_scopes(drained.ended)
        self._add_costs(drained.ended, change)
        default = default_trace(drained.ended, self._origin.segments.trace)
        foreign = sorted(self._foreign_rows(drained, default), key=span_order)
        result = FlushResult()
        around = self._around(drained)
        # Most scopes in the journal are still open, so this set is usually empty.
        journalled_ids = self._journalled - {scope.id for scope in drained.open}
        journalled_ids |= {each.id for each in around if each not in drained.late}
        snapshots = self._snapshot_rows(drained, change)
        self._add_figures(drained, change)
        self.ownership.checkpoint()
        result.closed, ids = self._assembly.assemble(
            drained.ended, drained.marks, foreign, default, change,
            lambda ids, is_split: self.otel.of_flush(
                drained, default, ids, is_split, change, self._announced
            ),
            journalled_ids, snapshots, result.batches.append,
        )  # fmt: skip
        if self._budget is not None:
            result.batches = [self._budget.apply(batch) for batch in result.batches]
        open_scopes = drained.open.keys() | drained.late.keys()
        add_ids(change, {scope: some for scope, some in ids.items() if scope in open_scopes})
        self._add_open(drained, around, result)
        if self.retains_records:
            result.ended, result.points = drained.ended, drained.marks.copy()
        change.spans += sum(batch.span_count for batch in result.batches)
        change.marks += sum(batch.mark_count for batch in result.batches)
        change.snapshots += sum(batch.snapshot_count for batch in result.batches)
        return result

    def _add_figures(self, drained: Drained, change: FlushChanges) -> None:
        partial = () if self._thinner is None else self._thinner.partial
        change.figures.add(drained.ended, drained.marks, partial)

    def _add_costs(self, ended: list[Scope], change: FlushChanges) -> None:
        """Add the time lost to flushes, and that of rare work, to that inside scopes."""
        background, inside = self.background, change.inside
        for scope, ns in tuple(rare_work):
            while type(scope) is EnclosingSpan:
                scope = scope._above  # noqa: PLW2901
            inside[scope] = inside.get(scope, 0) + ns
            change.rare += 1
        if ended:
            background.thread = ended[-1]._thread
            change.windows = distribute(tuple(background.windows), ended, inside)

    def _unchanged(self) -> FlushChanges:
        return FlushChanges(
            {scope: ids for scope, ids in self._mark_ids.items() if scope._id},
            self._announced, [], self._scopes, self.spans, self.marks, self.snapshots,
            self.spans_lost, self.marks_lost, self.snapshots_lost, self.overhead_ns,
            self._inside.copy(), places=self._places.copy(), figures=self._figures.copy(),
        )  # fmt: skip

    def _note(self, result: FlushResult) -> None:
        """Update the builder's state from a result. It may be called again with the same result."""
        change, drained = self._change, self._drained
        if drained is not None:
            self._open = drained.open
            self._mark_ids, self._announced = change.mark_ids, change.announced
            self._journalled = {row.id for row in result.open}
            for _, begun in drained.foreign:
                begun.seen.is_recorded = True
            if drained.is_last:
                for seen in drained.still:
                    seen.is_recorded = True  # one that is ending now is not recorded once more
                self._foreign.open.clear()
                forget_newest()
        self._apply(change)
        self._drain.clear()
        self._drained, self._attempts = None, 0
        result.is_noted = True
        if self._recent is not None:
            for batch in result.batches:
                self._recent.add(batch)

    def _apply(self, change: FlushChanges) -> None:
        segments = self._origin.segments.new
        while segments and segments[0] in change.segments:
            del segments[0]
        self._scopes, self.overhead_ns = change.scopes, change.overhead_ns
        self._inside = {s: ns for s, ns in change.inside.items() if s._id and not s._end}
        for _ in range(change.windows):
            self.background.windows.popleft()
        for _ in range(change.rare):
            rare_work.popleft()
        change.windows = change.rare = 0
        self.spans, self.marks, self.snapshots = change.spans, change.marks, change.snapshots
        self.spans_lost, self.marks_lost = change.spans_lost, change.marks_lost
        self.snapshots_lost = change.snapshots_lost
        self._places, self._figures = change.places, change.figures

    def _give_up(self) -> None:
        """Drop and count records from which no batch can be built."""
        drain = self._drain
        for _, begun in drain.foreign:
            begun.seen.is_recorded = True
        drained, self._drained, self._attempts = self._drained, None, 0
        if drained is not None:
            # Some of the open scopes have ended, and wait for a later flush.
            ended, marks, self._open = drained.ended, drained.marks, drained.open
        else:
            taken = dict.fromkeys(drain.scopes, 0) | self._open
            ended, marks = [scope for scope in taken if scope._end], drain.marks
            self._open = {scope: count for scope, count in taken.items() if not scope._end}
        self.spans_lost += len(ended) + len(drain.foreign)
        self.marks_lost += len(marks)
        self.snapshots_lost += sum(each.size for each in drain.snapshots)
        drain.clear()

    @property
    def taken(self) -> tuple[int, int, int]:
        """The numbers of spans, marks and snapshots that were taken and are not sealed.

        Any thread may read it.
        """
        drain, latest = self._drain, self.latest
        counts = RecordCounts(len(drain.scopes) + len(drain.foreign), len(drain.marks))
        counts.snapshots = sum(each.size for each in drain.snapshots.copy())
        if latest is not None and latest.is_noted and not latest.is_sealed:
            for batch in latest.batches:
                counts.add(batch.span_count, batch.mark_count, batch.snapshot_count)
        return counts.spans, counts.marks, counts.snapshots

    @property
    def foreign_dropped(self) -> int:
        """The number of foreign spans dropped because the buffer was full."""
        return self._foreign.dropped

    def waiting_steps(self) -> list[Scope]:
        """Return the steps that have no record yet. Any thread may call this method."""
        waiting: list[Any] = [scope for each in tuple(registry) for scope in each.scopes.copy()]
        waiting += [*spared_scopes.copy(), *self._drain.scopes.copy(), *self._open.copy()]
        return [scope for scope in waiting if scope._id and is_step(scope)]

    # --- taking ---------------------------------------------------------------------------------

    def _take(self, is_last: bool, is_portion: bool) -> Drained:
        drain = self._drain
        drain.take_scopes(is_portion=is_portion)
        self.ownership.checkpoint()
        ended: list[Scope] = []
        still: dict[Scope, int] = {}
        for scope in (*self._open, *drain.scopes):
            if not scope._end or (isinstance(scope, Phase) and is_held(scope)):
                still[scope] = self._open.get(scope, -1) + 1
            elif scope._id:
                ended.append(scope)
        held = pinned.held(ended)
        ended = self._defer(ended, still, held)
        if is_last:
            ended += self._close_all(still)
            still = {}
        self.ownership.checkpoint()
        # A parent of a scope in `ended` may end now: it is in this copy, or it is taken below.
        open_foreign = [] if is_last else list(self._foreign.open.values())
        drain.take_others()
        if unfinished := drain.unfinished(ended):
            ended = self._defer(ended, still, unfinished)
            held |= unfinished
        drain.hold_samples(ended, is_last=is_last)
        drain.select_hook_marks()
        if self._snapshots is not None:
            self._snapshots.move_ready(drain.snapshots)
        self.ownership.checkpoint()
        late = drain.late(ended)
        self.ownership.checkpoint()
        drain.marks += trainings.marks_of(ended, self._origin.session)
        marks = drain.marks
        if self._thinner is not None:
            ended, marks = self._thinner.filter(
                ended, marks, is_last, drain.waiting | held if held else drain.waiting
            )
        if (before := self.before_loop) is not None and has_loop((*ended, *still)):
            self.before_loop = None
            before()
        taken = {begun.seen for _, begun in drain.foreign}
        # One that an earlier flush has taken may be open still, if its thread was interrupted.
        begun = {
            each.seen: each
            for each in open_foreign
            if each.seen not in taken and not each.seen.is_recorded
        }
        return Drained(ended, drain.foreign, marks, still, late, begun, is_last, drain.snapshots)

    def _defer(self, ended: list[Scope], still: dict[Scope, int], held: set[Any]) -> list[Scope]:
        """Return the ended scopes without those in `held`, which remain open for this flush."""
        if not held:
            return ended
        still.update({scope: self._open.get(scope, -1) + 1 for scope in held})
        return [scope for scope in ended if scope not in held]

    def _close_all(self, still: dict[Scope, int]) -> list[Scope]:
        """End all open scopes, the session last."""
        session = self._origin.session
        closed = []
        for scope in sorted(still, key=attrgetter("_depth"), reverse=True):
            if scope is not session and not scope._end:
                scope.attrs.setdefault("incomplete", True)
                extras = scope._extras
                if extras is None or extras.status.status_code is not StatusCode.ERROR:
                    scope.set_status(StatusCode.ERROR, INCOMPLETE)
            # A phase that has ended but is not finished has its end time in `_until`.
            scope._end = scope._end or getattr(scope, "_until", 0) or now()
            closed.append(scope)
        self._closed += closed
        return closed

    # --- records --------------------------------------------------------------------------------

    def _foreign_rows(self, drained: Drained, default: Trace) -> list[SpanRow]:
        rows = [self._foreign_row(span, begun, default) for span, begun in drained.foreign]
        if drained.is_last:
            taken = {begun.seen for _, begun in drained.foreign}
            for begun in list(self._foreign.open.values()):
                if begun.seen.is_recorded or begun.seen in taken:
                    continue  # it is ending in another thread
                drained.still[begun.seen] = begun
                row = self._foreign_row(begun.span, begun, default)
                if row is not None and not row.end_ns:
                    row.end_ns = wall_now()
                    known = {} if row.otel is UNSET else row.otel
                    row.otel = {"status": {"code": 2, "message": INCOMPLETE}} | known
                    row.attrs = {"incomplete": True} | row.attrs
                rows.append(row)
        return [row for row in rows if row is not None]

    def _snapshot_rows(self, drained: Drained, change: FlushChanges) -> list[SnapshotRow]:
        rows: list[SnapshotRow] = []
        for each in drained.snapshots:
            try:
                added = each.rows()
            except Exception as error:
                record_error("snapshot", error)
                added = []
            rows += added
            change.snapshots_lost += each.size - len(added)
        return sorted(rows, key=snapshot_order)

    def _foreign_row(self, span: Any, begun: Any, default: Trace) -> SpanRow | None:
        try:
            return foreign_row(span, begun, self._origin.pid, self._origin.rank, default)
        except Exception as error:
            record_error("foreign span", error)
            return None

    # --- open scopes ------------------------------------------------------------------------------

    def _around(self, drained: Drained) -> dict[Any, None]:
        """Return the ended spans around the scopes that the journal contains.

        Spans of other libraries are left out once a batch contains them, or they were dropped. An
        ended scope may be in an earlier batch already.
        """
        outermost = (None, NO_SESSION, self._origin.session)
        found: dict[Any, None] = {}
        for scope in (*drained.open, *drained.late):
            each: Any = scope._above
            while each not in outermost and each not in found:
                found[each] = None
                each = each._above

        def has_ended(each: Any) -> bool:
            if type(each) is EnclosingSpan:
                return each not in drained.still and not each.is_recorded
            return bool(each._end)

        return {each: None for each in found if each._id and has_ended(each)}

    def _add_open(self, drained: Drained, around: dict[Any, None], result: FlushResult) -> None:
        session_trace = self._origin.session._trace
        for scope in (*drained.open, *drained.late):
            try:
                row = span_row(scope, self._origin.pid, self._origin.rank, session_trace, [])
            except Exception as error:
                record_error("record", error)
                continue
            if row.index is not None and is_step(scope):
                row.attrs = {**self._change.places.copy().place(scope, row.index), **row.attrs}
            if type(scope._name) is str and scope._name in NUMBERED and trainings.is_used:
                row.attrs = {**trainings.attribute_of(scope), **row.attrs}
            # A scope that has ended but is not sealed yet has an end time: a phase that waits for a
            # device or its step, or a scope that a sample is taken in.
            until = scope._end or getattr(scope, "_until", 0)
            row.end_ns = wall(until) if until else 0
            result.open.append(row)
        if drained.is_last:
            return
        taken = {begun.seen for _, begun in drained.foreign}
        ended = [each for each in around if type(each) is EnclosingSpan and each not in taken]
        left = drained.still | {each: OpenForeignSpan(each.span, each) for each in ended}
        for seen, begun in left.items():
            row_or_none = self._foreign_row(begun.span, begun, session_trace)
            if row_or_none is not None:
                if seen in drained.still:
                    row_or_none.end_ns = 0
                result.open.append(row_or_none)


def add_ids(change: FlushChanges, ids: dict[Scope, list[str]]) -> None:
    """Remember the ids of marks whose scope has no record yet."""
    for scope, mark_ids in ids.items():
        halves = bytes.fromhex("".join([mark_id[:16] for mark_id in mark_ids]))
        change.mark_ids[scope] = bytearray(change.mark_ids.get(scope, b"") + halves)
