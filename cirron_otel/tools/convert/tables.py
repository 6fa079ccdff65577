"""The sources that `convert`, `export`, `report` and `diff` read, and the targets of `convert`.

Each source or target is a row of a table, and is named nowhere else in the code. A row contains the
name of its opener, which is imported when the row is first used, and describes as data the
capabilities that the commands need. To add a source or a target, add a row here, or call
`register_source` or `register_target`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import UsageError

STANDARD = "-"
"""Standard input as a source, standard output as a target."""

Loaded = str | Callable[..., Any]
"""A function, or its name `package.module:function`, which is imported when it is first needed."""


def _load(function: Loaded) -> Callable[..., Any]:
    if not isinstance(function, str):
        return function
    module, _, name = function.partition(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return loaded


class SourceLocation(NamedTuple):
    """The location of a source, for messages and for comparison with the paths of output files."""

    shown: str
    """The source without credentials."""
    path: Path | None
    """The file or directory; None if the source is not in the file system."""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A kind of source."""

    opener: Loaded
    """A function `(PathSpec, SourceContext) -> BatchSource` (sources.py)."""
    summary: str
    """A line for the help of the commands."""
    prefixes: tuple[str, ...] = ()
    """The prefixes that identify this kind of source.

    If `is_format`, the prefix is not part of the path; otherwise it is.
    """
    is_format: bool = True
    """Whether `--from` accepts the row's name."""
    accepts_from: bool = True
    """Whether `--from` may be given together with a prefix of this row, which then overrides it."""
    reads_stdin: bool = False
    is_spool: bool = False
    """Whether the source is a spool directory, which is read without a copy and can be followed."""
    stdout_format: str | None = "otlp-json"
    """The target's format if it is `-` and `--to` is not given; None if `--to` is required."""
    can_join: bool = False
    """Whether the source attaches its records to the scopes of another spool (`--join`)."""
    joins_rank: bool = False
    """Whether `--select rank=N` beside `--join` selects the rank of the other spool."""
    locator: Loaded | None = None
    """A function `(source) -> object with shown and path`; None if the source is a path."""
    hint: Loaded | None = None
    """A function `(path) -> str | None`: the advice for a path of this kind without its prefix."""

    def open(self, *arguments: Any) -> Any:
        """Call the opener."""
        return _load(self.opener)(*arguments)


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A kind of target."""

    opener: Loaded
    """A function `(PathSpec, Report, SizeLimits) -> context manager of a TargetWriter`
    (targets.py)."""
    summary: str
    """A line for the help of the commands."""
    prefixes: tuple[str, ...] = ()
    """The prefixes that identify this kind of target; the rest of the target is the path."""
    suffixes: tuple[str, ...] = ()
    """The suffixes of files that identify this kind of target."""
    encoding: str = "cirron"
    """The input of the writer: batches (`cirron`), their rows (`columns`), or messages
    (`otlp-json`, `otlp-proto`)."""
    can_recall: bool = False
    """Whether the writer's `read` returns batches that the target already contains."""
    has_keys: bool = False
    """Whether worker processes skip batches whose keys the target contains."""
    writes_stdout: bool = True

    @property
    def takes_messages(self) -> bool:
        """Whether the target contains OTLP messages rather than batches."""
        return self.encoding.startswith("otlp-")

    def open(self, *arguments: Any) -> Any:
        """Call the opener."""
        return _load(self.opener)(*arguments)


SOURCES: dict[str, SourceRow] = {
    "spool": SourceRow(
        "cirron_otel.tools.convert.sources:SpoolSource",
        "a directory that contains spool/ or .cirron/spool/, or is the spool itself",
        is_spool=True,
    ),
    "batch": SourceRow(
        "cirron_otel.tools.convert.sources:BatchFileSource",
        "a .json file that contains one batch",
        reads_stdin=True,
    ),
    "otlp-json": SourceRow(
        "cirron_otel.tools.convert.otlp_source:OtlpSource",
        "OTLP/JSON, one TracesData per line: .jsonl or .json, also with .gz or .zst",
        reads_stdin=True,
        stdout_format=None,
    ),
    "otlp-proto": SourceRow(
        "cirron_otel.tools.convert.otlp_source:OtlpSource",
        "OTLP protobuf, each TracesData after its length: .binpb, also with .gz or .zst",
        reads_stdin=True,
        stdout_format=None,
    ),
    "cirron-proto": SourceRow(
        "cirron_otel.tools.convert.wire_files:WireSource",
        "batches as protobuf, each cirron.v1.Batch after its length; only if --from names it",
        reads_stdin=True,
    ),
    "jaeger": SourceRow(
        "cirron_otel.tools.convert.otlp_source:open_backend",
        "traces from Jaeger's query API: jaeger:URL?session=ID, ?trace=ID or ?service=NAME",
        prefixes=("jaeger:",),
        is_format=False,
        accepts_from=False,
        stdout_format=None,
    ),
    "tempo": SourceRow(
        "cirron_otel.tools.convert.otlp_source:open_backend",
        "traces from Tempo's query API: tempo:URL?session=ID, ?trace=ID or ?service=NAME",
        prefixes=("tempo:",),
        is_format=False,
        accepts_from=False,
        stdout_format=None,
    ),
    "stormlog": SourceRow(
        "cirron_otel.tools.convert.stormlog:StormlogSource",
        "a recording of Stormlog's: stormlog:PATH; an export, a sink, a segment, or a bundle",
        prefixes=("stormlog:",),
        reads_stdin=True,
        can_join=True,
    ),
    "traceml": SourceRow(
        "cirron_otel.tools.convert.traceml:TraceMLSource",
        "a recording of TraceML's: traceml:PATH; frames, a history, a summary, or a run's folder",
        prefixes=("traceml:",),
    ),
    "dgrr": SourceRow(
        "cirron_otel.tools.convert.dgrr:TraceSource",
        "a trace of the Training Trace Runtime: dgrr:PATH",
        prefixes=("dgrr:",),
        reads_stdin=True,
        can_join=True,
        joins_rank=True,
    ),
    "parquet": SourceRow(
        "cirron_otel.tools.convert.parquet:ParquetSource",
        "columnar tables: parquet:DIR or parquet:s3://BUCKET/PREFIX",
        prefixes=("parquet:",),
        locator="cirron_otel.tools.convert.parquet:locate",
        hint="cirron_otel.tools.convert.parquet_hint:hint_for",
    ),
    "iceberg": SourceRow(
        "cirron_otel.tools.convert.iceberg:IcebergSource",
        "columnar tables in a catalog of Apache Iceberg: iceberg:sqlite:///FILE",
        prefixes=("iceberg:",),
        locator="cirron_otel.tools.convert.iceberg:locate",
    ),
    "sqlite": SourceRow(
        "cirron_otel.tools.convert.sources:open_storage",
        "a database that cirron-otel wrote: sqlite:///FILE",
        prefixes=("sqlite://",),
        is_format=False,
        locator="cirron_otel.core.targets.sql.url:parse_url",
    ),
    "postgresql": SourceRow(
        "cirron_otel.tools.convert.sources:open_storage",
        "a database that cirron-otel wrote: postgresql://HOST/DATABASE",
        prefixes=("postgresql://", "postgres://"),
        is_format=False,
        locator="cirron_otel.core.targets.sql.url:parse_url",
    ),
}
"""Every kind of source by its name."""

TARGETS: dict[str, TargetRow] = {
    "spool": TargetRow(
        "cirron_otel.tools.convert.targets:open_spool",
        "a directory, or a name without a suffix; batches are added to DST/spool/",
        can_recall=True,
        writes_stdout=False,
    ),
    "batch": TargetRow(
        "cirron_otel.tools.convert.targets:open_batch_file",
        "a file with one batch; only if --to names it",
        can_recall=True,
    ),
    "otlp-json": TargetRow(
        "cirron_otel.tools.convert.targets:open_messages",
        "OTLP/JSON, one TracesData per line: .jsonl or .json, also with .gz or .zst",
        encoding="otlp-json",
    ),
    "otlp-proto": TargetRow(
        "cirron_otel.tools.convert.targets:open_messages",
        "OTLP protobuf, each TracesData after its length: .binpb, also with .gz or .zst",
        encoding="otlp-proto",
    ),
    "cirron-proto": TargetRow(
        "cirron_otel.tools.convert.wire_files:open_wire_file",
        "batches as protobuf, each cirron.v1.Batch after its length; only if --to names it",
    ),
    "stormlog": TargetRow(
        "cirron_otel.tools.convert.stormlog:open_target",
        "Stormlog's files: stormlog:DST; .json is an array, .jsonl a segment, others a directory",
        prefixes=("stormlog:",),
    ),
    "traceml": TargetRow(
        "cirron_otel.tools.convert.traceml:open_target",
        "TraceML's frames: traceml:DIR; a .frames file for each process",
        prefixes=("traceml:",),
        writes_stdout=False,
    ),
    "dgrr": TargetRow(
        "cirron_otel.tools.convert.dgrr:open_target",
        "a trace of the Training Trace Runtime: dgrr:DST; the source contains one",
        prefixes=("dgrr:",),
    ),
    "parquet": TargetRow(
        "cirron_otel.tools.convert.parquet:open_target",
        "columnar tables for DataFrames and SQL engines: parquet:DIR or parquet:s3://BUCKET/PREFIX",
        prefixes=("parquet:",),
        encoding="columns",
        has_keys=True,
        writes_stdout=False,
    ),
    "iceberg": TargetRow(
        "cirron_otel.tools.convert.iceberg:open_target",
        "columnar tables in a catalog of Apache Iceberg: iceberg:sqlite:///FILE, batches are added",
        prefixes=("iceberg:",),
        encoding="columns",
        writes_stdout=False,
    ),
    "steps-csv": TargetRow(
        "cirron_otel.tools.frames.step_files:open_csv",
        "the steps, a line for each step and rank: .csv",
        suffixes=(".csv",),
    ),
    "steps-parquet": TargetRow(
        "cirron_otel.tools.frames.step_files:open_parquet",
        "the steps, a row for each step and rank: .parquet",
        suffixes=(".parquet",),
    ),
}
"""Every kind of target by its name."""


def register_source(name: str, row: SourceRow) -> None:
    """Add a row to the table of sources. Raises ValueError if the name is taken."""
    if name in SOURCES:
        raise ValueError(f"the source {name!r} is registered already")
    SOURCES[name] = row


def register_target(name: str, row: TargetRow) -> None:
    """Add a row to the table of targets. Raises ValueError if the name is taken."""
    if name in TARGETS:
        raise ValueError(f"the target {name!r} is registered already")
    TARGETS[name] = row


def source_formats() -> list[str]:
    """Return the names that `--from` accepts."""
    return [name for name, row in SOURCES.items() if row.is_format]


def source_with_prefix(source: str) -> tuple[str, str] | None:
    """Return the row name and the prefix that match the start of `source`; None if none matches."""
    return _with_prefix(source, ((name, row.prefixes) for name, row in SOURCES.items()))


def target_with_prefix(target: str) -> tuple[str, str] | None:
    """Return the row name and the prefix that match the start of `target`; None if none matches."""
    return _with_prefix(target, ((name, row.prefixes) for name, row in TARGETS.items()))


def target_with_suffix(target: str) -> str | None:
    """Return the row name whose suffix `target` has; None if there is none."""
    for name, row in TARGETS.items():
        if target.lower().endswith(row.suffixes):
            return name
    return None


def _with_prefix(text: str, rows: Iterable[tuple[str, tuple[str, ...]]]) -> tuple[str, str] | None:
    for name, prefixes in rows:
        for prefix in prefixes:
            if text.startswith(prefix):
                return name, prefix
    return None


def location_of(source: str) -> SourceLocation:
    """Locate a source without opening it. Raises UsageError if its address is not valid."""
    match = source_with_prefix(source)
    if match is None:
        return SourceLocation(source, Path(source))
    row = SOURCES[match[0]]
    if row.locator is not None:
        location = _load(row.locator)(source)
        return SourceLocation(location.shown, location.path)
    if row.is_format:
        return SourceLocation(source, Path(source.removeprefix(match[1])))
    return SourceLocation(source, None)


def hint_for(path: Path) -> str | None:
    """Return the prefix that a path lacks, as advice in an error message; None if it lacks none."""
    functions = [_load(row.hint) for row in SOURCES.values() if row.hint is not None]
    return next(filter(None, (function(path) for function in functions)), None)


def check_from(source_format: str | None, name: str) -> None:
    """Raise UsageError if `--from` contradicts the prefix of a source of the row `name`."""
    row = SOURCES[name]
    if source_format in (None, name) or (row.accepts_from and not row.is_format):
        return
    prefixes = [p for each in SOURCES.values() if not each.accepts_from for p in each.prefixes]
    omitted = prefixes if not row.accepts_from else list(row.prefixes)
    raise UsageError(f"--from is the format of a file: omit it for {joined(omitted, 'and')}")


def joined(names: Iterable[str], word: str) -> str:
    """Join names for a message: `a, b and c`."""
    *others, last = names
    return f"{', '.join(others)} {word} {last}" if others else last
