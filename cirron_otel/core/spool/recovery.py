"""Recovery of the unfinished work of processes that died.

The records that they had no time to seal are moved into the spool. Their open scopes are closed as
incomplete, so that every child has its parent; their partly written files are removed. Live
processes are never affected. The same journal and batches always result in the same batch, byte for
byte. Once that batch is written, another recovery has nothing to do.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ... import exactjson
from ...errors import InputError
from ...ids import digest
from ...semconv import OOM_KILLS
from ..records.canonical import batch_bytes
from ..records.schema import SCHEMA_VERSION
from .journal import JournalState, ReadJournal, journal_path, read_journal
from .lease import claim, lease_files
from .oom_bundles import remove_unfinished
from .oom_kills import kills_text, risen
from .owner import batch_id_of, dead_owners, has_unsealed, known_owners, lock_path, owner_of, owners
from .paths import TMP_SUFFIX, SpoolPaths, batch_names, file_name, find_spool
from .reader import SpoolReader
from .remainder import Left, remainder_path, seal_remainder
from .state import remove_unlocked, replace_file, set_aside, unwritable
from .writer import SpoolWriter


class _Span(msgspec.Struct):
    id: str
    parent_id: str | None
    end_ns: int


class _Mark(msgspec.Struct):
    id: str
    span_id: str
    ts_ns: int


class _Batch(msgspec.Struct):
    spans: list[_Span] = []
    marks: list[_Mark] = []


_decoder = msgspec.json.Decoder(_Batch)


@dataclass(slots=True)
class SealedScopes:
    """The data in sealed batches about the requested scopes."""

    ids: set[str] = field(default_factory=set)
    """The scopes that were sealed as spans."""
    child_ends: dict[str, int] = field(default_factory=dict)
    """The latest end of a scope's children, by the scope's id."""
    marks: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    """(ts_ns, id) of the marks on a scope, by the scope's id."""

    def marks_of(self, some_id: str) -> list[str]:
        """Return the ids of the marks on a scope, in the order of their creation."""
        return [mark_id for _, mark_id in sorted(set(self.marks.get(some_id, ())))]


def sealed_of(paths: SpoolPaths, prefix: str, wanted: Collection[str]) -> SealedScopes:
    """Search an owner's batches for the `wanted` scopes.

    Files that are not batches as this package writes them are skipped: `spool verify` reports them.
    """
    sealed = SealedScopes()
    if not paths.spool.is_dir():
        return sealed
    try:
        reader = SpoolReader(paths.spool)
    except InputError:  # an empty directory that is not named spool
        return sealed
    for name in reader.names():
        if owner_of(name) != prefix:
            continue
        file = reader.read(name, check=False)
        if file is not None:
            try:
                batch = _decoder.decode(file.data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            _look(batch, wanted, sealed)
    return sealed


def _look(batch: _Batch, wanted: Collection[str], sealed: SealedScopes) -> None:
    for span in batch.spans:
        if span.id in wanted:
            sealed.ids.add(span.id)
        if span.parent_id is not None and span.parent_id in wanted:
            before = sealed.child_ends.get(span.parent_id, 0)
            sealed.child_ends[span.parent_id] = max(before, span.end_ns)
    for mark in batch.marks:
        if mark.span_id in wanted:
            sealed.marks.setdefault(mark.span_id, []).append((mark.ts_ns, mark.id))


INCOMPLETE = "incomplete"
"""The attribute that marks a scope closed by recovery, unless the user set this attribute."""
MESSAGE = "incomplete: the process ended without closing this scope"
_STATUS_ERROR = 2


class Recovered(NamedTuple):
    """The result of recovering a dead owner."""

    owner: str
    """The owner's prefix."""
    session: str | None = None
    """The session in the owner's journal; None if the journal was missing or damaged."""
    name: str | None = None
    """The batch that was written; None if nothing was left to write."""
    incomplete: int = 0
    """The number of scopes that were closed as incomplete."""
    closed: int = 0
    """The number of scopes that had ended and were in no sealed batch."""
    oom_kills: int = 0
    """How many processes of the owner's cgroup the kernel has killed since its session began."""
    saved: tuple[str, ...] = ()
    """The batches of the remainder, which the owner had no time to seal."""
    lost: Left = Left()
    """Numbers of records that the owner reported as lost."""
    torn: tuple[str, ...] = ()
    """The owner's `.json.tmp` files, which were removed."""
    problem: str = ""
    """The damage to the owner's journal or remainder, which was renamed to `.bad`; "" for none."""


def recover(paths: SpoolPaths) -> list[Recovered]:
    """Recover every dead owner that no other process is recovering, in order.

    Raises TargetError if the spool cannot be written; the remaining owners are left unchanged.
    """
    recovered = []
    dead = dead_owners(paths)
    torn = _torn(paths) if dead else {}
    for prefix in dead:
        lease = claim(paths, f"recovery {prefix}")
        if lease is None:
            continue
        with lease:
            # The owner may have become alive, or another process may have recovered it meanwhile.
            if prefix in dead_owners(paths):
                recovered.append(_recover(paths, prefix, torn.get(prefix, [])))
    if dead:
        _forget_deliveries(paths)
        for path in lease_files(paths):
            remove_unlocked(path)
    return recovered


def find_recoverable(path: str | os.PathLike[str]) -> SpoolPaths:
    """Return the spool at `path`, even if a process died before its first batch.

    Raises InputError if there is neither a spool nor its `state/`.
    """
    try:
        return find_spool(path)
    except InputError:
        for root in (Path(path), Path(path) / ".cirron"):
            if owners(SpoolPaths.under(root)):
                return SpoolPaths.under(root)
        raise


def _recover(paths: SpoolPaths, prefix: str, torn: Iterable[str]) -> Recovered:
    removed = tuple(name for name in torn if remove_unlocked(paths.spool / name))
    remainder = seal_remainder(paths, prefix, _writer(paths))
    result = Recovered(
        prefix,
        saved=tuple(remainder.names),
        lost=remainder.left,
        torn=removed,
        problem=remainder.problem,
    )
    try:
        journal = read_journal(paths, prefix)
    except InputError as error:
        set_aside(journal_path(paths, prefix))
        problems = [each for each in (result.problem, str(error)) if each]
        result = result._replace(problem="; ".join(problems))
    else:
        if journal is not None:
            result = _close(paths, prefix, journal, result)
    remove_unfinished(paths.oom, prefix)
    _remove_traces(paths, prefix)
    return result


def _close(paths: SpoolPaths, prefix: str, journal: ReadJournal, result: Recovered) -> Recovered:
    state = journal.state
    result = result._replace(session=state.session)
    span_ids = {span.id for span in (*state.open, *state.closed)}
    sealed = sealed_of(paths, prefix, span_ids)
    # Marks created since the previous batch were in the batch that was not sealed, and are lost.
    closed = [
        {**span, "mark_ids": sealed.marks_of(span["id"])}
        for span in _exact(journal, "closed")
        if span["id"] not in sealed.ids
    ]
    left = [span for span in _exact(journal, "open") if span["id"] not in sealed.ids]
    if not closed and not left:
        return result
    ends = _ends(left, closed, sealed, state.written_ns)
    kills = _noted_kills(paths, prefix, journal) if left else 0
    spans = closed + [
        _incomplete(span, ends[span["id"]], sealed.marks_of(span["id"]), kills) for span in left
    ]
    for span in spans:
        if span["id"] == state.session:
            _add_lost(span, result.lost)
    spans.sort(key=lambda span: (span["end_ns"], span["id"]))
    batch = _batch(prefix, state, journal.exact["otel"], spans)
    name = (
        _writer(paths)
        .write(batch_bytes(batch), file_name(state.written_ns, batch["batch_id"]))
        .name
    )
    return result._replace(name=name, incomplete=len(left), closed=len(closed), oom_kills=kills)


def _writer(paths: SpoolPaths) -> SpoolWriter:
    """Return a writer into the spool that was found, even if it is empty now."""
    writer = SpoolWriter(paths.root, max_bytes=None)
    writer.paths = paths
    return writer


def _noted_kills(paths: SpoolPaths, prefix: str, journal: ReadJournal) -> int:
    """Return how many processes of the owner's cgroup the kernel has killed meanwhile.

    The number is first written into the journal: another recovery of the same owner, after a crash
    of this one, must write the same batch, although the counter may have changed. Raises
    TargetError.
    """
    counter = journal.state.oom_kills
    if counter is None:
        return 0
    if counter.risen is None:
        kills = risen(counter)
        exact = journal.exact
        exact[OOM_KILLS] = {**exact[OOM_KILLS], "risen": kills}
        replace_file(journal_path(paths, prefix), exactjson.dumps(exact))
        return kills
    return counter.risen


def _exact(journal: ReadJournal, key: str) -> list[dict[str, Any]]:
    """Return the spans of one of the journal's lists, without duplicates."""
    spans: dict[str, dict[str, Any]] = {}
    for span in journal.exact[key]:
        spans.setdefault(span["id"], span)
    return list(spans.values())


def _ends(
    left: list[dict[str, Any]], closed: list[dict[str, Any]], sealed: SealedScopes, written_ns: int
) -> dict[str, int]:
    """Return an end time for each open scope.

    It is not earlier than the last time at which the scope is known to have been open, nor than the
    end of any scope inside it.
    """
    ends = {
        span["id"]: max(written_ns, span["start_ns"], sealed.child_ends.get(span["id"], 0))
        for span in left
    }
    parents = {span["id"]: span["parent_id"] for span in left}
    for span in closed:
        if span["parent_id"] in ends:
            ends[span["parent_id"]] = max(ends[span["parent_id"]], span["end_ns"])
    for some_id in list(ends):
        _push_up(some_id, parents, ends)
    return ends


def _push_up(some_id: str, parents: dict[str, str | None], ends: dict[str, int]) -> None:
    parent = parents.get(some_id)
    while parent is not None and parent in ends and ends[parent] < ends[some_id]:
        ends[parent] = ends[some_id]
        some_id, parent = parent, parents.get(parent)


def _incomplete(span: dict[str, Any], end_ns: int, marks: list[str], kills: int) -> dict[str, Any]:
    """Return an open scope as an incomplete span; an existing error status is preserved."""
    span = {**span, "end_ns": end_ns, "mark_ids": marks}
    attrs, otel = span.get("attrs"), span.get("otel", {})
    if isinstance(attrs, dict):
        span["attrs"] = {**attrs, INCOMPLETE: attrs.get(INCOMPLETE, True)}
        if kills:
            span["attrs"][OOM_KILLS] = attrs.get(OOM_KILLS, kills)
    if isinstance(otel, dict):
        status = otel.get("status")
        if not isinstance(status, dict) or status.get("code") != _STATUS_ERROR:
            status = {"code": _STATUS_ERROR, "message": MESSAGE + kills_text(kills)}
        span["otel"] = {**otel, "status": status}
    return span


def _add_lost(span: dict[str, Any], lost: Left) -> None:
    """Count lost records on the session, like the SDK's `DropCounts.record_in`."""
    attrs = span.get("attrs")
    counts = {f"drops.{kind}_left_at_exit": number for kind, number in lost.by_kind() if number}
    if counts and isinstance(attrs, dict):
        span["attrs"] = {**attrs, **counts}


def _batch(
    prefix: str, state: JournalState, otel: Any, spans: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "sdk_version": state.sdk_version,
        "batch_id": batch_id_of(prefix, digest("recovery", prefix, state.session)),
        "created_ns": state.written_ns,
        "spans": spans,
        "marks": [],
        "snapshots": [],
        "otel": otel,
    }


def _remove_traces(paths: SpoolPaths, prefix: str) -> None:
    """Remove the remainder, the journal, and the lock file: then the owner needs no recovery."""
    journal = journal_path(paths, prefix)
    for path in (remainder_path(paths, prefix), journal, journal.with_name(journal.name + ".tmp")):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(path, error) from None
    remove_unlocked(lock_path(paths, prefix))


def _torn(paths: SpoolPaths) -> dict[str, list[str]]:
    """Return the names of temporary files, in use or abandoned, by owner."""
    names: dict[str, list[str]] = {}
    for name in _entries(paths):
        if name.endswith(TMP_SUFFIX):
            prefix = owner_of(name.removesuffix(".tmp"))
            if prefix is not None:
                names.setdefault(prefix, []).append(name)
    return names


def _entries(paths: SpoolPaths) -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError), os.scandir(paths.spool) as entries:
        for entry in entries:
            yield entry.name


def _forget_deliveries(paths: SpoolPaths) -> None:
    """Remove the cursors and file lists of dead owners that have no batches left."""
    try:
        present = {owner_of(name) for name in batch_names(paths.spool)}
    except OSError:
        return
    for prefix in known_owners(paths) - present - {None}:
        if not lock_path(paths, prefix).exists() and not has_unsealed(paths, prefix):
            with contextlib.suppress(OSError):  # the next recovery tries again
                for path in paths.state.glob(f"*-*-{prefix}.json"):
                    path.unlink(missing_ok=True)
