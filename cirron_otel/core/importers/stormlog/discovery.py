"""Finding recordings at a path: exports, sinks, segments, and bundles of OOMs and `diagnose`.

A path is a file, or a directory that is a recording or contains several. Nothing outside of the
directory is opened: names in manifests are compared with the directory's files and never joined to
a path, and symbolic links are not followed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from .... import exactjson
from ....errors import InputError
from ...records.problems import ReadingProblem
from .exact import parse_record
from .manifests import CaptureSummary, entries_of, segment_names, segment_sessions, summary_of
from .pieces import Piece, array, events_of, has_events, lines, object_end
from .safe_files import UnreadableFileError, open_regular, read_regular

Kind = Literal["file", "segment", "sink", "oom", "diagnose"]
Form = Literal["lines", "array", "events", "telemetry_events", "document", "timeline"]
EVENT_KEYS: tuple[Form, ...] = ("events", "telemetry_events")
"""The keys of arrays of records, in the order in which Stormlog looks for them; each is also the
form of a file."""
_PRECEDENCE: tuple[Kind, ...] = ("sink", "segment", "file", "diagnose", "oom")
"""The order of recordings: of events that are found twice, the more complete one is first."""
OnFinding = Callable[[ReadingProblem], None]

MANIFEST = "manifest.json"
TIMELINE = "telemetry_timeline.json"
SINK_FORMAT = "stormlog.append_only_telemetry_sink"
_OOM_EVENTS = "events.json"
_NOT_EVENTS = frozenset(
    {MANIFEST, TIMELINE, "rollups.json", "environment.json", "metadata.json",
     "diagnostic_summary.json"}
)  # fmt: skip
_SEGMENT = re.compile(r"segment-\d+\.jsonl")
_LINES = (".jsonl", ".ndjson")
_MAX_MANIFEST = 64 * 2**20
_MAX_EXPORT = 16 * 2**20
"""The longest export that is read at once for its `session_summary`, bytes."""
_MAX_DEPTH = 16
_HEAD = 2**16
_FIRST_BYTE = re.compile(rb"[^ \t\r\n]")
_MAX_LIKELY = 2**20
"""The longest file with a single record that is found in a directory, bytes."""
_TIMES = frozenset({"timestamp", "timestamp_ns"})
_NO_PIECE = Piece(0, b"", b"", 0)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file with records."""

    path: Path
    name: str
    """Its name in findings: relative to the path that was given."""
    form: Form
    follow: bool = False
    """Whether it may be a symbolic link: only the path that the user named."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """One recording of Stormlog: a file, a sink, or a bundle."""

    kind: Kind
    path: Path
    """The file, or the directory of the sink or bundle."""
    name: str
    """Its name in findings; "" if it is the directory that was given."""
    files: tuple[SourceFile, ...] = ()
    """The files with records, in the order in which they were written."""
    summaries: tuple[CaptureSummary, ...] = ()
    """The sessions that the manifest lists."""
    segment_sessions: dict[str, str] = field(default_factory=dict)
    """The session ids of a sink's segments, by file name."""
    attachments: tuple[Path, ...] = ()
    """The other files of a sink or bundle, which have no records; the manifest is one of them."""


def discover(path: str | os.PathLike[str], on_finding: OnFinding) -> list[Artifact]:
    """Return the recordings at `path`: sinks first, bundles last, each kind in order of names.

    Raises InputError if the path does not exist, or contains no recording.
    """
    root = Path(path)
    try:
        if root.is_dir():
            found = list(_directory(root, "", on_finding, 0))
        elif root.name == MANIFEST:
            found = _of_manifest(root, on_finding)
        else:
            found = [_file(root, root.name, follow=True)]
    except UnreadableFileError as error:
        raise InputError(f"{root}: {error}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{root} cannot be read: {reason}") from None
    if not found:
        raise InputError(
            f"{root} contains no recording of Stormlog: expected a JSON export, a telemetry sink,"
            " a segment, or an OOM or diagnose bundle"
        )
    return sorted(found, key=lambda artifact: _PRECEDENCE.index(artifact.kind))


def _of_manifest(manifest: Path, on_finding: OnFinding) -> list[Artifact]:
    found = _recording(manifest.parent, "", _names(manifest.parent), on_finding)
    if found is None:
        raise UnreadableFileError(
            "expected the manifest of a telemetry sink, or of an OOM or diagnose bundle"
        )
    return [found]


def _names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(directory))


def _directory(
    directory: Path, prefix: str, on_finding: OnFinding, depth: int
) -> Iterator[Artifact]:
    """Yield the recordings in a directory and below it."""
    names = _names(directory)
    recording = _recording(directory, prefix, names, on_finding)
    if recording is not None:
        yield recording
    for name in names:
        path = directory / name
        shown = prefix + name
        if path.is_symlink():
            if path.suffix in (".json", *_LINES):
                on_finding(ReadingProblem(shown, "link", "is a symbolic link: not followed"))
        elif path.is_dir():
            if depth < _MAX_DEPTH:
                try:
                    yield from _directory(path, f"{shown}/", on_finding, depth + 1)
                except OSError as error:
                    reason = error.strerror or error
                    on_finding(ReadingProblem(shown, "unreadable", f"cannot be read: {reason}"))
        elif recording is None and path.suffix in (".json", *_LINES) and name not in _NOT_EVENTS:
            file = _likely_file(path, shown, on_finding)
            if file is not None:
                yield file


def _likely_file(path: Path, shown: str, on_finding: OnFinding) -> Artifact | None:
    """Return the recording in a file that a directory contains; None if it is another file."""
    try:
        found = _file(path, shown)
        with open_regular(path) as stream:
            return found if _starts_with_event(stream, found.files[0].form) else None
    except UnreadableFileError as error:
        on_finding(ReadingProblem(shown, "unreadable", str(error)))
        return None


def _starts_with_event(stream: BinaryIO, form: Form) -> bool:
    """Return whether the first record of a file has a time."""
    if form == "timeline":
        return True
    pieces = lines(stream) if form == "lines" else array(stream)
    if form in EVENT_KEYS:
        pieces = events_of(stream, form)
    raw = stream.read(_MAX_LIKELY) if form == "document" else next(pieces, _NO_PIECE).raw
    data = parse_record(raw).data
    return data is not None and not _TIMES.isdisjoint(data)


def _file(path: Path, shown: str, *, follow: bool = False) -> Artifact:
    """Return the recording in one file. Raises UnreadableFileError."""
    form = _form(path, follow)
    source = SourceFile(path, shown, form, follow)
    if path.suffix in _LINES:
        manifest, _ = _manifest(path.with_name(MANIFEST))
        if manifest is not None and entries_of(manifest, "segments"):
            return Artifact(
                "segment", path, shown, (source,), _summaries(manifest), segment_sessions(manifest)
            )
        return Artifact("segment", path, shown, (source,))
    summaries = _tracker_summary(path, follow) if form == "telemetry_events" else ()
    kind: Kind = "diagnose" if form == "timeline" else "file"
    return Artifact(kind, path, shown, (source,), summaries)


def _tracker_summary(path: Path, follow: bool) -> tuple[CaptureSummary, ...]:
    """Return the session that a tracker's export describes beside its `telemetry_events`."""
    try:
        data = parse_record(read_regular(path, _MAX_EXPORT, follow=follow)).data
    except UnreadableFileError:
        return ()  # longer than is read at once: the events determine the session
    summary = summary_of(_plain((data or {}).get("session_summary")))
    return () if summary is None else (summary,)


def _form(path: Path, follow: bool) -> Form:
    """Return how a file contains its records. Raises UnreadableFileError."""
    if path.name == TIMELINE:
        return "timeline"
    with open_regular(path, follow=follow) as stream:
        if path.suffix in _LINES:
            return "lines"
        first = _FIRST_BYTE.search(stream.read(_HEAD))
        if first is None or first[0] not in b"[{":
            return "document"
        if first[0] == b"[":
            return "array"
        for key in EVENT_KEYS:
            stream.seek(0)
            if has_events(stream, key):
                return key
        stream.seek(0)
        end = object_end(stream)
        if end is None:
            return "lines"
        stream.seek(end)
        while chunk := stream.read(_HEAD):
            if chunk.strip(b" \t\r\n"):
                return "lines"
    return "document"


def _recording(
    directory: Path, prefix: str, names: list[str], on_finding: OnFinding
) -> Artifact | None:
    """Return the sink or bundle that a directory is; None if it is neither."""
    manifest, problem = _manifest(directory / MANIFEST) if MANIFEST in names else (None, None)
    segments = [name for name in names if _SEGMENT.fullmatch(name)]
    kind: Kind
    if segments or (manifest is not None and manifest.get("format") == SINK_FORMAT):
        kind = "sink"
        # A segment that the manifest does not list was written after the manifest.
        segments = _listed(manifest or {}, names, segments, prefix, on_finding)
        sources = [_segment(directory / name, prefix + name) for name in segments]
    elif _OOM_EVENTS in names and (
        (manifest is not None and "bundle_name" in manifest) or "metadata.json" in names
    ):
        kind = "oom"
        path = directory / _OOM_EVENTS
        try:
            form = _form(path, follow=False)
        except UnreadableFileError:
            form = "array"
        sources = [SourceFile(path, prefix + _OOM_EVENTS, form)]
    elif TIMELINE in names:
        kind = "diagnose"
        sources = [SourceFile(directory / TIMELINE, prefix + TIMELINE, "timeline")]
    else:
        return None
    if problem is not None:
        on_finding(ReadingProblem(prefix + MANIFEST, "manifest-damaged", problem))
    for number, entry in enumerate(entries_of(manifest or {}, "sessions")):
        if summary_of(entry) is None:
            message = "not a valid session: expected the fields that Stormlog writes; not used"
            place = f"$.sessions[{number}]"
            on_finding(ReadingProblem(prefix + MANIFEST, "manifest-session", message, path=place))
    used = {source.path for source in sources}
    others = [directory / name for name in names]
    return Artifact(
        kind, directory, prefix.rstrip("/"), tuple(sources), _summaries(manifest),
        segment_sessions(manifest or {}),
        tuple(path for path in others if path not in used and _is_file(path)),
    )  # fmt: skip


def _segment(path: Path, shown: str) -> SourceFile:
    return SourceFile(path, shown, "lines")


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _listed(
    manifest: dict[str, Any], names: list[str], segments: list[str], prefix: str,
    on_finding: OnFinding,
) -> list[str]:  # fmt: skip
    """Return the names of a sink's segments; a listed one that is missing has been pruned."""
    present = set(names)
    found = dict.fromkeys(segments)
    for name in segment_names(manifest):
        if name in present:
            found[name] = None
        elif "/" in name or name in ("", ".", ".."):
            on_finding(
                ReadingProblem(
                    prefix + MANIFEST,
                    "outside",
                    f"the segment {name[:200]!a} is not a file of the sink: not opened",
                )
            )
    return sorted(found, key=lambda name: (len(name), name))


def _summaries(manifest: dict[str, Any] | None) -> tuple[CaptureSummary, ...]:
    if manifest is None:
        return ()
    values = [*entries_of(manifest, "sessions"), manifest.get("session")]
    found = (summary_of(value) for value in values)
    return tuple(summary for summary in found if summary is not None)


def _manifest(path: Path) -> tuple[dict[str, Any] | None, str | None]:
    """Return a manifest, or None and what is wrong with it; None and None if it is missing."""
    try:
        parsed = parse_record(read_regular(path, _MAX_MANIFEST))
    except UnreadableFileError as error:
        return None, str(error) if os.path.lexists(path) else None
    if parsed.data is None:
        return None, parsed.problems[0].message
    return _plain(parsed.data), None


def _plain(value: Any) -> Any:
    """Return `value` without the numbers that only `exactjson` can write."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, exactjson.Raw) else value
