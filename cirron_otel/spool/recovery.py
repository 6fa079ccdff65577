"""Recovery: what processes that died left half-done in a spool.

Their open scopes are closed as incomplete, so that no child is left without its parent; what they
were writing is removed. The living are never touched. The same journal and batches always give
the same batch, byte for byte, and once it is there a second recovery finds nothing to do.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError
from ..ids import digest
from ..records.schema import SCHEMA_VERSION
from .canonical import batch_bytes
from .journal import JournalState, ReadJournal, journal_path, read_journal
from .lease import claim
from .owner import batch_id_of, dead_owners, known_owners, lock_path, owner_of, owners
from .paths import TMP_SUFFIX, SpoolPaths, batch_names, file_name, find_spool
from .sealed import Sealed, sealed_of
from .state import remove_unlocked, set_aside, unwritable
from .writer import SpoolWriter

INCOMPLETE = "incomplete"
"""The attribute of a scope that recovery closed, unless the user gave it one of that name."""
MESSAGE = "incomplete: the process ended without closing this scope"
_STATUS_ERROR = 2


class Recovered(NamedTuple):
    """What became of a dead owner."""

    owner: str
    """Its prefix."""
    session: str | None = None
    """The session of its journal; None where it had none, or a damaged one."""
    name: str | None = None
    """The batch that was written; None where nothing was left to write."""
    incomplete: int = 0
    """Scopes that were closed as incomplete."""
    closed: int = 0
    """Scopes that had ended and were in no sealed batch."""
    torn: tuple[str, ...] = ()
    """The `.json.tmp` files of it that were removed."""
    problem: str = ""
    """What was wrong with its journal, which was set aside; "" where nothing was."""


def recover(paths: SpoolPaths) -> list[Recovered]:
    """Recover every dead owner of the spool that nobody else is recovering, in order.

    Raises TargetError where the spool cannot be written: what was not recovered then is left as it
    was.
    """
    found = []
    dead = dead_owners(paths)
    torn = _torn(paths) if dead else {}
    for prefix in dead:
        lease = claim(paths, f"recovery {prefix}")
        if lease is None:
            continue
        with lease:
            # Since the list was made it may have come to life, or been recovered by another.
            if prefix in dead_owners(paths):
                found.append(_recover(paths, prefix, torn.get(prefix, [])))
    if dead:
        _forget_deliveries(paths)
    return found


def find_recoverable(path: str | os.PathLike[str]) -> SpoolPaths:
    """The spool at `path`, also where a process died before its first batch.

    Raises InputError where there is neither a spool nor its `state/`.
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
    done = Recovered(prefix, torn=removed)
    try:
        journal = read_journal(paths, prefix)
    except InputError as error:
        set_aside(journal_path(paths, prefix))
        done = done._replace(problem=str(error))
    else:
        if journal is not None:
            done = _close(paths, prefix, journal, done)
    _remove_traces(paths, prefix)
    return done


def _close(paths: SpoolPaths, prefix: str, journal: ReadJournal, done: Recovered) -> Recovered:
    state = journal.state
    done = done._replace(session=state.session)
    wanted = {span.id for span in (*state.open, *state.closed)}
    sealed = sealed_of(paths, prefix, wanted)
    # Marks made since the batch before stood in the batch that was not sealed, and are lost.
    closed = [
        {**span, "mark_ids": sealed.marks_of(span["id"])}
        for span in _exact(journal, "closed")
        if span["id"] not in sealed.ids
    ]
    left = [span for span in _exact(journal, "open") if span["id"] not in sealed.ids]
    if not closed and not left:
        return done
    ends = _ends(left, closed, sealed, state.written_ns)
    spans = closed + [
        _incomplete(span, ends[span["id"]], sealed.marks_of(span["id"])) for span in left
    ]
    spans.sort(key=lambda span: (span["end_ns"], span["id"]))
    batch = _batch(prefix, state, journal.exact["otel"], spans)
    writer = SpoolWriter(paths.root, max_bytes=None)
    writer.paths = paths  # the spool as it was found, though nothing may be left in it
    name = writer.write(batch_bytes(batch), file_name(state.written_ns, batch["batch_id"])).name
    return done._replace(name=name, incomplete=len(left), closed=len(closed))


def _exact(journal: ReadJournal, key: str) -> list[dict[str, Any]]:
    """The journal's spans of one list, each once."""
    spans: dict[str, dict[str, Any]] = {}
    for span in journal.exact[key]:
        spans.setdefault(span["id"], span)
    return list(spans.values())


def _ends(
    left: list[dict[str, Any]], closed: list[dict[str, Any]], sealed: Sealed, written_ns: int
) -> dict[str, int]:
    """When each open scope ends: not before it was seen open, nor before anything inside it."""
    ends = {
        span["id"]: max(written_ns, span["start_ns"], sealed.child_ends.get(span["id"], 0))
        for span in left
    }
    above = {span["id"]: span["parent_id"] for span in left}
    for span in closed:
        if span["parent_id"] in ends:
            ends[span["parent_id"]] = max(ends[span["parent_id"]], span["end_ns"])
    for some_id in list(ends):
        _push_up(some_id, above, ends)
    return ends


def _push_up(some_id: str, above: dict[str, str | None], ends: dict[str, int]) -> None:
    parent = above.get(some_id)
    while parent is not None and parent in ends and ends[parent] < ends[some_id]:
        ends[parent] = ends[some_id]
        some_id, parent = parent, above.get(parent)


def _incomplete(span: dict[str, Any], end_ns: int, marks: list[str]) -> dict[str, Any]:
    """An open scope as a span that says that it is incomplete; an error's own status stays."""
    span = {**span, "end_ns": end_ns, "mark_ids": marks}
    attrs, otel = span.get("attrs"), span.get("otel", {})
    if isinstance(attrs, dict):
        span["attrs"] = {**attrs, INCOMPLETE: attrs.get(INCOMPLETE, True)}
    if isinstance(otel, dict):
        status = otel.get("status")
        if not isinstance(status, dict) or status.get("code") != _STATUS_ERROR:
            status = {"code": _STATUS_ERROR, "message": MESSAGE}
        span["otel"] = {**otel, "status": status}
    return span


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
    """Remove the journal, and then the lock file: an owner without either needs no recovery."""
    journal = journal_path(paths, prefix)
    for path in (journal, journal.with_name(journal.name + ".tmp")):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(path, error) from None
    remove_unlocked(lock_path(paths, prefix))


def _torn(paths: SpoolPaths) -> dict[str, list[str]]:
    """By owner: the names of the files that somebody is writing, or was."""
    found: dict[str, list[str]] = {}
    for name in _entries(paths):
        if name.endswith(TMP_SUFFIX):
            prefix = owner_of(name.removesuffix(".tmp"))
            if prefix is not None:
                found.setdefault(prefix, []).append(name)
    return found


def _entries(paths: SpoolPaths) -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError), os.scandir(paths.spool) as entries:
        for entry in entries:
            yield entry.name


def _forget_deliveries(paths: SpoolPaths) -> None:
    """Remove the cursors, and lists of files, of owners that are gone with all their batches."""
    try:
        present = {owner_of(name) for name in batch_names(paths.spool)}
    except OSError:
        return
    for prefix in known_owners(paths) - present - {None}:
        if not lock_path(paths, prefix).exists() and not journal_path(paths, prefix).exists():
            with contextlib.suppress(OSError):  # the next recovery tries again
                for path in paths.state.glob(f"*-*-{prefix}.json"):
                    path.unlink(missing_ok=True)
