"""DuckDB over the Parquet files of a directory of tables (docs/columns.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from ... import exactjson
from ...errors import InputError, TargetError
from ...semconv import JOB, SESSION, TRAINING, TRAINING_NAME
from ..analysis.run_batch import STEP_NAMES, RunBatchOutline, add_end, outline_of_otel
from ..analysis.run_report import PREFIX
from ..columns.schema import BATCHES, MARKS, SNAPSHOTS, SPANS
from ..records.rows import DEVICE_PEAK, MAX_TEXT, PEAK_SAMPLES, PHASES_ARE_SUMS, RESERVED_PEAK
from ..records.step_summaries import INSIDE, STEPS
from .columnar_batches import ColumnarBatches
from .engine import MARK, PLACE, PLACES, REPEATED, SPAN, Schema, SqlEngine, Table
from .unsupported import NeedsPythonError

MEMORY_LIMIT: Final = "600MB"
_FETCHED = 10_000
_WRITTEN = 20_000
_TYPES = {
    "int64": pa.int64(), "string": pa.string(), "boolean": pa.bool_(), "float64": pa.float64(),
}  # fmt: skip
_SPAN_QUERY: Final = f"""
SELECT {{number}} * {PLACES} + ordinal AS no, CAST(ordinal AS BIGINT) AS position, id,
    parent_id AS parent, name, CAST("index" AS VARCHAR) AS idx, start_ns, end_ns, pid, rank,
    thread_id,
    CASE WHEN status_code = 2 THEN coalesce(nullif(status_message, ''), 'error') END AS error,
    gpu_ns, memory_peak_bytes AS memory_peak, {{attributes}}, CAST(NULL AS VARCHAR) AS origin
FROM {{files}} {{place}}
UNION ALL SELECT * FROM {{expanded}}
"""  # noqa: S608 - constants
_SPAN_KEYS: Final = (DEVICE_PEAK, RESERVED_PEAK, PEAK_SAMPLES, PHASES_ARE_SUMS, TRAINING)
_ATTRIBUTES_OF_SPANS: Final = f"""
    attributes['{DEVICE_PEAK}'].int_value AS device_peak,
    attributes['{RESERVED_PEAK}'].int_value AS reserved_peak,
    list_contains(map_keys(attributes), '{PEAK_SAMPLES}') AS is_peak_sampled,
    list_contains(map_keys(attributes), '{PHASES_ARE_SUMS}') AS phases_are_sums,
    coalesce(attributes['{TRAINING}'].int_value, 0) AS training
"""
_NO_ATTRIBUTES: Final = """
    CAST(NULL AS BIGINT) AS device_peak, CAST(NULL AS BIGINT) AS reserved_peak,
    false AS is_peak_sampled, false AS phases_are_sums, CAST(0 AS BIGINT) AS training
"""
_MARK_QUERY: Final = f"""
SELECT {{number}} * {PLACES} + ordinal AS no, id, span_id AS span, name, kind, ts_ns,
    CASE WHEN starts_with(name, 'hw.') THEN attributes['hw.id'].string_value
        WHEN name = '{TRAINING}' THEN left(attributes['{TRAINING_NAME}'].string_value, {MAX_TEXT})
    END AS device,
    coalesce(value_nonfinite, left(value_string, {MAX_TEXT})) AS text,
    CASE WHEN value_nonfinite IS NULL THEN value_float END AS number, value_int AS integer,
    value_bool AS flag, false AS is_summarised, value_string IS NOT NULL AS is_string
FROM {{files}} {{place}}
UNION ALL SELECT * FROM {{expanded}}
"""  # noqa: S608 - constants


_KEYS: Final = (
    f"list_has_any(map_keys(attributes), {list(_SPAN_KEYS)})",
    "cardinality(attributes) > 0"
    f" AND len(list_filter(map_keys(attributes), lambda k: starts_with(k, '{PREFIX}'))) > 0",
)
"""Whether a span has an attribute that the relation needs, and one that counts drops."""


def relation_query(
    table: str,
    files: str,
    expanded: str,
    *,
    number: str = "place.number",
    place: str = "JOIN place USING (batch_key)",
    has_attributes: bool = True,
) -> str:
    """Return the query of the relation `span` or `mark`, by the table that contains its records.

    `files` and `expanded` are the relations with the rows of the table's files, and with those of
    the batches that are expanded. `number` is the number of a row's batch, and `place` selects the
    batches. `has_attributes` is whether spans have attributes that the relation needs.
    """
    query = _SPAN_QUERY if table == SPANS else _MARK_QUERY
    attributes = _ATTRIBUTES_OF_SPANS if has_attributes else _NO_ATTRIBUTES
    return query.format(
        files=files, expanded=expanded, number=number, place=place, attributes=attributes
    )


_OUTLINES = f"""
SELECT batch_key, rank, count(*), min(start_ns), max(end_ns),
    count(*) FILTER (name IN {STEP_NAMES})
FROM {{rows}} GROUP BY batch_key, rank
"""  # noqa: S608 - constants
_ENDS = f"""
SELECT batch_key, name, otel, attributes FROM {{rows}}
WHERE name = '{JOB}' OR (name = '{SESSION}' AND parent_id IS NULL) ORDER BY batch_key, ordinal
"""  # noqa: S608 - constants
_HEADERS = """
SELECT batch_key, otel FROM {rows}
"""
_RECORDERS = """
SELECT batch_key, sdk_version, coalesce(contains(otel, '"resource_spans"'), false) FROM {rows}
"""
_UNPLACED = """
SELECT count(*) FROM {rows} AS r
ANTI JOIN place USING (batch_key)
"""
_ATTRIBUTES = """
SELECT place.number, ordinal, attributes
FROM {rows} JOIN place USING (batch_key)
WHERE list_contains(?, name)
ORDER BY place.number, ordinal
"""
_NOT_JSON = r"regexp_matches({0}, 'NaN|Infinity|[:,\[]-?[0-9.]+[eE][+]?[0-9]{{3}}')"
_ODD_ATTRIBUTES = f"""
cardinality(attributes) > 0 AND len(list_filter(map_values(attributes), lambda v:
    NOT isfinite(v.double_value) OR v.string_value IN ('{PEAK_SAMPLES}', '{PHASES_ARE_SUMS}')
    OR contains(v.json_value, '"{PEAK_SAMPLES}"') OR contains(v.json_value, '"{PHASES_ARE_SUMS}"')
    OR {_NOT_JSON.format("v.json_value")}
)) > 0
"""
_ODD_RECORD = f"extra IS NOT NULL OR {_NOT_JSON.format('otel')} OR ({_ODD_ATTRIBUTES})"
_ODD = {
    SPANS: f"""
        {_ODD_RECORD} OR length(name) > {MAX_TEXT} OR length(status_message) > {MAX_TEXT}
        OR start_ns IS NULL OR end_ns IS NULL
        OR list_has_any(map_keys(attributes), ['{INSIDE}', '{STEPS}']) OR name = 'traceml.summary'
    """,
    MARKS: f"""
        {_ODD_RECORD} OR length(name) > {MAX_TEXT} OR length(kind) > {MAX_TEXT}
        OR (NOT isfinite(value_float) AND value_nonfinite IS NULL)
        OR (kind = 'summary' AND starts_with(name, 'traceml.'))
    """,
    SNAPSHOTS: f"""
        {_ODD_RECORD} OR stats IS NOT NULL
        OR NOT (isfinite(mean) AND isfinite(std) AND isfinite(min) AND isfinite(max)
            AND isfinite(norm))
    """,
    BATCHES: f"extra IS NOT NULL OR {_NOT_JSON.format('otel')}",
}
"""The conditions on records that make a batch odd: its columns do not have exactly what an index
has of the batch, or it contains several steps in one span."""


class DuckDBEngine(SqlEngine):
    """An in-memory database that reads the files of tables.

    It also prepares the relations of the other engines: it finds the odd batches, and has the rows.
    """

    dialect: ClassVar[str] = "duckdb"

    def __init__(self, batches: ColumnarBatches, folder: Path) -> None:
        """`folder` is a temporary directory for what does not fit in memory."""
        super().__init__()
        self.batches, self._folder, self._spill = batches, folder, str(folder / "duckdb")
        self._has_attributes = False
        self.may_have_drops = False
        """Whether sessions may have counts of drops, after `odd_keys`."""
        self._connection = duckdb.connect()
        self.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        self.execute(f"SET temp_directory = {_quoted(self._spill)}")
        self.execute("SET preserve_insertion_order = false")
        # In notebooks and with `python -c`, DuckDB would print a progress bar to stdout.
        self.execute("SET enable_progress_bar = false")
        self.execute("SET autoinstall_known_extensions = false")
        self.execute("SET autoload_known_extensions = false")
        self.put("repeated", REPEATED, batches.repeated)

    def close(self) -> None:
        """Drop all tables."""
        self._connection.close()

    def odd_keys(self) -> set[str]:
        """Return the keys of the batches that are odd."""
        keys: set[str] = set()
        for table, condition in _ODD.items():
            has_attributes, has_drops = _KEYS if table == SPANS else ("false", "false")
            query = f"""
                SELECT batch_key, coalesce(bool_or({condition}), false),
                    coalesce(bool_or({has_attributes}), false),
                    coalesce(bool_or({has_drops}), false)
                FROM {self._rows(table)}
                GROUP BY batch_key
            """  # noqa: S608 - constants
            for key, is_odd, has_attributes, has_drops in self._run(query):
                self._has_attributes |= has_attributes
                self.may_have_drops |= has_drops or is_odd
                if is_odd:
                    keys.add(key)
        return keys

    def outlines(self) -> dict[str, RunBatchOutline]:
        """Return the outlines of all batches by their keys; those of odd batches are not exact.

        Raises InputError for spans of a batch that the tables do not contain.
        """
        outlines = {
            key: outline_of_otel(None if otel is None else exactjson.loads(otel))
            for key, otel in self._run(_HEADERS.format(rows=self._rows(BATCHES)))
        }
        rows = self._run(_OUTLINES.format(rows=self._rows(SPANS)))
        for key, rank, spans, start_ns, end_ns, steps in rows:
            outline = outlines.get(key)
            if outline is None:
                raise InputError(
                    f"{self.batches.directory}: spans of a batch that is not in {BATCHES}"
                    f" ({key}): convert the recording again"
                )
            ranks = set() if rank is None else {rank}
            counts = {rank: steps} if steps else {}
            outline.join(
                RunBatchOutline(
                    start_ns=start_ns, end_ns=end_ns, ranks=ranks, steps=counts, spans=spans
                )
            )
        for key, name, otel, entries in self._run(_ENDS.format(rows=self._rows(SPANS))):
            attributes = {each: _value(entry) for each, entry in entries.items()}
            value = None if otel is None else exactjson.loads(otel)
            attrs = msgspec.Raw(exactjson.dumps(attributes))
            add_end(outlines[key], name, value if isinstance(value, dict) else None, attrs)
        return outlines

    def recorders(self) -> dict[str, tuple[str | None, bool]]:
        """Return the version of the recorder of each batch, and whether it is another service."""
        rows = self._run(_RECORDERS.format(rows=self._rows(BATCHES)))
        return {key: (version, is_foreign) for key, version, is_foreign in rows}

    def open(
        self,
        numbers: Iterable[tuple[str, int]],
        spans: Iterable[tuple[Any, ...]],
        marks: Iterable[tuple[Any, ...]],
    ) -> None:
        """Create the relations `span` and `mark`, instead of those of the run before.

        `numbers` has the keys and the numbers of the batches whose records the columns have.
        `spans` and `marks` are the rows of the others. Raises NeedsPythonError if one has an id
        that is not valid text.
        """
        for place in range(1, self._stored + 1):
            self.execute(f"DROP TABLE IF EXISTS part_{place}")
        self._stored = 0
        self.put("place", PLACE, numbers)
        self._write("span", SPAN, spans)
        self._write("mark", MARK, marks)
        # A cast is faster than a join with `place`: it looks up each key of a file's dictionary.
        keys = ", ".join(_quoted(batch.key) for batch in self.batches.batches)
        self.execute(f"CREATE TYPE IF NOT EXISTS batch_number AS ENUM ({keys or _quoted('')})")
        number = "CAST(enum_code(CAST(batch_key AS batch_number)) AS BIGINT)"
        selected = "WHERE batch_key IN (SELECT batch_key FROM place)"
        if self._has_all_batches():
            selected = ""
        for name, table in (("span", SPANS), ("mark", MARKS)):
            query = relation_query(
                table, self._rows(table), self._written(name), number=number, place=selected,
                has_attributes=self._has_attributes,
            )  # fmt: skip
            self.execute(f"CREATE OR REPLACE VIEW {name} AS {query}")

    def _has_all_batches(self) -> bool:
        """Return whether `place` has all batches of the files."""
        [(count,)] = self._run(_UNPLACED.format(rows=self._rows(BATCHES)))
        return bool(count == 0)

    def arrow(self, name: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `span` or `mark`."""
        with self._errors():
            rows = self._connection.sql(f"SELECT * FROM {name}")  # noqa: S608 - a constant
            yield from rows.to_arrow_reader(_FETCHED)

    def expanded(self, name: str) -> pa.Table:
        """Return the rows of `place`, of `repeated`, or the expanded ones of `span` or `mark`."""
        return pq.read_table(self._folder / f"{name}.parquet")

    def attributes_of_marks(
        self, names: Iterable[str]
    ) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Yield the attributes of the marks with some names, except those of odd batches, with the
        number of the batch and the position, in this order.
        """
        query = _ATTRIBUTES.format(rows=self._rows(MARKS))
        for number, ordinal, entries in self._run(query, [sorted(names)]):
            yield number, ordinal, {key: _value(entry) for key, entry in entries.items()}

    def create(self, name: str, query: str) -> None:
        """Create a table from a query."""
        self.execute(f"CREATE TABLE {name} AS {query}")

    def put(self, name: str, schema: Schema, rows: Iterable[tuple[Any, ...]]) -> None:
        """Create or replace a table of some rows."""
        self._write(name, schema, rows)
        self.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM {self._written(name)}")  # noqa: S608 - a path

    def execute(self, statement: str) -> None:
        """Run a statement."""
        with self._errors():
            self._connection.execute(statement)

    def record_batches(self, expression: Table, size: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of an expression, in its order, as record batches of about `size`."""
        with self._errors():
            rows = self._connection.cursor().sql(self.sql(expression))
            yield from rows.to_arrow_reader(size)

    def _run(self, query: str, values: list[Any] | None = None) -> Iterator[tuple[Any, ...]]:
        with self._errors():
            cursor = self._connection.cursor()
            cursor.execute(query, values)
            while rows := cursor.fetchmany(_FETCHED):
                yield from rows

    def _rows(self, table: str) -> str:
        """Return the relation of the rows of a table that count, each once."""
        files = f"[{', '.join(map(_quoted, self.batches.files(table)))}]"
        if not self.batches.repeated:
            return f"read_parquet({files}, hive_partitioning = false)"
        return (
            "(SELECT * EXCLUDE (filename)"  # noqa: S608 - paths
            f" FROM read_parquet({files}, hive_partitioning = false, filename = true) AS r"
            " ANTI JOIN repeated ON r.batch_key = repeated.batch_key"
            " AND parse_filename(r.filename) = repeated.file)"
        )

    def _write(self, name: str, schema: Schema, rows: Iterable[tuple[Any, ...]]) -> None:
        """Write rows into a temporary file, in portions."""
        arrow, ahead = arrow_schema(schema), iter(rows)
        with pq.ParquetWriter(self._folder / f"{name}.parquet", arrow) as writer:
            while some := list(islice(ahead, _WRITTEN)):
                columns = zip(zip(*some, strict=True), arrow.types, strict=True)
                try:
                    arrays = [pa.array(values, type_) for values, type_ in columns]
                except UnicodeEncodeError:
                    raise NeedsPythonError("the run has an id that is not valid text") from None
                writer.write_table(pa.table(arrays, schema=arrow))

    def _written(self, name: str) -> str:
        return f"read_parquet({_quoted(str(self._folder / f'{name}.parquet'))})"

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except duckdb.Error as error:
            is_io = isinstance(error, duckdb.IOException) and self._spill in str(error)
            if is_io or isinstance(error, duckdb.OutOfMemoryException):
                raise TargetError(
                    f"DuckDB cannot write its temporary files: {_first_line(error)};"
                    " set TMPDIR to a directory with enough space"
                ) from None
            raise InputError(f"DuckDB cannot read the tables: {_first_line(error)}") from None


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of a relation."""
    return pa.schema([(name, _TYPES[type_]) for name, type_ in schema.items()])


def _quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def _value(entry: dict[str, Any]) -> Any:
    for name, value in entry.items():
        if value is not None:
            return exactjson.loads(value) if name == "json_value" else value
    return None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
