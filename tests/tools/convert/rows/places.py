"""For each row of the tables: a place that contains batches, a damaged one, and an absent one."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.core.otlp.files import read_messages
from cirron_otel.core.otlp.formats import Encoding, Format
from cirron_otel.core.otlp.json_codec import traces_to_json
from cirron_otel.core.otlp.wire import encode_varint
from cirron_otel.core.targets.sql.storage import Storage
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.core.targets.sql.helpers import files
from tests.kit.backends.process import free_port
from tests.kit.spools.comparing import RECORDED, batches
from tests.tools.query.serving import Said, serving

SPOOL = RECORDED / "01_torch_basic"
STORMLOG = RECORDED.parent / "stormlog" / "v039" / "sim_gpu" / "sink"
"""A recording of Stormlog's, which becomes one batch."""
TRACEML = RECORDED.parent / "traceml" / "v050" / "ddp2_short" / "frames" / "rank0_pid19149.frames"
"""The frames of one of TraceML's processes, which become one batch."""
DGRR = RECORDED.parent / "dgrr" / "clean_100.dgrr"
"""A trace, which becomes one batch."""
RECORDINGS = {"stormlog": STORMLOG, "traceml": TRACEML, "dgrr": DGRR}
"""The recordings from which the spools of these rows are made: a row's files contain nothing else.
"""
SESSION = "session="


class Given(NamedTuple):
    """A source or a target for a command: its argument, and `--from` or `--to`."""

    argument: str
    format: str | None = None


@dataclass(frozen=True)
class SourceCase:
    """How a test makes sources of one row."""

    intact: Callable[[Path, Path], contextlib.AbstractContextManager[Given]]
    """(spool, folder) -> a source with the batches of the spool."""
    damaged: Callable[[Path], contextlib.AbstractContextManager[Given]]
    """(folder) -> a source whose content is not of the expected form."""
    absent: Callable[[Path], Given]
    absent_code: int = 3


def _written(name: str, suffix: str = "") -> SourceCase:
    """A file that `convert` writes."""

    @contextlib.contextmanager
    def intact(spool: Path, folder: Path) -> Iterator[Given]:
        name_of_batch = min(spool.rglob("*.json")).name
        path = folder / (name_of_batch if name == "batch" else f"intact{suffix}")
        convert(ConvertRequest(str(spool), str(path), target_format=name))
        yield Given(str(path), name)

    @contextlib.contextmanager
    def damaged(folder: Path) -> Iterator[Given]:
        path = folder / f"damaged{suffix}"
        path.write_bytes(b"\x1f\xff{ this is not a batch" * 3)
        yield Given(str(path), name)

    return SourceCase(intact, damaged, lambda folder: Given(str(folder / "absent"), name))


@contextlib.contextmanager
def _spool(spool: Path, folder: Path) -> Iterator[Given]:
    yield Given(str(shutil.copytree(spool, folder / "copy")))


@contextlib.contextmanager
def _damaged_spool(folder: Path) -> Iterator[Given]:
    copy = shutil.copytree(SPOOL, folder / "copy")
    first = min(copy.rglob("*.json"))
    first.write_bytes(first.read_bytes()[:100])
    yield Given(str(copy))


def _database(scheme: str) -> SourceCase:
    @contextlib.contextmanager
    def intact(spool: Path, folder: Path) -> Iterator[Given]:
        with _empty_database(scheme, folder) as url:
            with Storage.open(url) as storage:
                storage.write(files(spool.rglob("*.json")))
            yield Given(url)

    @contextlib.contextmanager
    def damaged(folder: Path) -> Iterator[Given]:
        with _empty_database(scheme, folder) as url:
            if scheme == "sqlite":
                (folder / "database").write_bytes(b"this is not a database" * 100)
            yield Given(url)  # without the tables

    def absent(folder: Path) -> Given:
        if scheme == "sqlite":
            return Given(f"sqlite:///{folder}/absent")
        return Given(f"postgresql://127.0.0.1:{free_port()}/absent")

    return SourceCase(intact, damaged, absent, 3 if scheme == "sqlite" else 5)


@contextlib.contextmanager
def _empty_database(scheme: str, folder: Path) -> Iterator[str]:
    if scheme == "sqlite":
        yield f"sqlite:///{folder}/database"
        return
    from tests.kit.backends.postgres import postgres

    with postgres() as server:
        yield server.new_database()


def _backend(name: str) -> SourceCase:
    """A server that answers as a backend does, with the traces of the spool's first session."""

    @contextlib.contextmanager
    def intact(spool: Path, folder: Path) -> Iterator[Given]:
        path = folder / "traces.binpb"
        convert(ConvertRequest(str(spool), str(path)))
        bodies = {key: _body(name, traces) for key, traces in _by_trace(path).items()}

        def answer(path: str, _number: int) -> Said:
            for trace_id, body in bodies.items():
                if trace_id in path:
                    return body
            return Said(status=404)

        with serving(answer) as served:
            yield Given(f"{name}:{served.url}?{'&'.join(f'trace={each}' for each in bodies)}")

    @contextlib.contextmanager
    def damaged(folder: Path) -> Iterator[Given]:
        del folder
        said = Said(body=b"\x0a\xff\xff{", kind="application/protobuf")
        with serving(lambda *_: said) as served:
            yield Given(f"{name}:{served.url}?trace={'ab' * 16}")

    def absent(folder: Path) -> Given:
        del folder
        return Given(f"{name}:http://127.0.0.1:{free_port()}?trace={'ab' * 16}")

    return SourceCase(intact, damaged, absent, 5)


def _by_trace(path: Path) -> dict[str, TracesData]:
    """The spans of an OTLP file by the id of their trace, as a backend returns them."""
    traces: dict[str, TracesData] = {}
    with path.open("rb") as file:
        for message in read_messages(file, Format(Encoding.PROTO)):
            for group in TracesData.FromString(message.data).resource_spans:
                for scoped in group.scope_spans:
                    for span in scoped.spans:
                        trace = traces.setdefault(span.trace_id.hex(), TracesData())
                        part = trace.resource_spans.add(resource=group.resource)
                        part.scope_spans.add(scope=scoped.scope, spans=[span])
    return traces


def _body(name: str, traces: TracesData) -> Said:
    if name == "jaeger":
        return Said(body=b'{"result":' + traces_to_json(traces) + b"}")
    data = traces.SerializeToString()
    return Said(body=b"\x0a" + encode_varint(len(data)) + data, kind="application/protobuf")


@contextlib.contextmanager
def _stormlog(spool: Path, folder: Path) -> Iterator[Given]:
    """Stormlog's files hold events only: the spool is made of them (`spool_for`)."""
    del spool
    yield Given(f"stormlog:{shutil.copytree(STORMLOG, folder / 'sink')}")


@contextlib.contextmanager
def _damaged_stormlog(folder: Path) -> Iterator[Given]:
    copy = shutil.copytree(STORMLOG, folder / "sink")
    segment = copy / "segment-000001.jsonl"
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join([*lines[:3], b"{ this is not a record\n", *lines[3:]]))
    yield Given(f"stormlog:{copy}")


@contextlib.contextmanager
def _traceml(spool: Path, folder: Path) -> Iterator[Given]:
    """TraceML's files hold its rows only: the spool is made of them (`spool_for`)."""
    del spool
    yield Given(f"traceml:{shutil.copy(TRACEML, folder / 'stream.frames')}")


@contextlib.contextmanager
def _damaged_traceml(folder: Path) -> Iterator[Given]:
    (folder / "stream.frames").write_bytes(TRACEML.read_bytes()[:-5])
    yield Given(f"traceml:{folder}/stream.frames")


@contextlib.contextmanager
def _dgrr(spool: Path, folder: Path) -> Iterator[Given]:
    """A trace holds its own records only: the spool is made of them (`spool_for`)."""
    del spool
    yield Given(f"dgrr:{shutil.copy(DGRR, folder / 'copy.dgrr')}")


@contextlib.contextmanager
def _damaged_dgrr(folder: Path) -> Iterator[Given]:
    (folder / "damaged.dgrr").write_bytes(DGRR.read_bytes()[:-5])
    yield Given(f"dgrr:{folder}/damaged.dgrr")


@contextlib.contextmanager
def _tables(spool: Path, folder: Path) -> Iterator[Given]:
    convert(ConvertRequest(str(spool), f"parquet:{folder}/tables"))
    yield Given(f"parquet:{folder}/tables")


@contextlib.contextmanager
def _damaged_tables(folder: Path) -> Iterator[Given]:
    with _tables(SPOOL, folder) as source:
        file = max((folder / "tables" / "spans").rglob("*.parquet"), key=lambda f: f.stat().st_size)
        file.write_bytes(file.read_bytes()[:-50])
        yield source


@contextlib.contextmanager
def _catalog(spool: Path, folder: Path) -> Iterator[Given]:
    convert(ConvertRequest(str(spool), f"iceberg:{folder}/catalog.db"))
    yield Given(f"iceberg:{folder}/catalog.db")


@contextlib.contextmanager
def _damaged_catalog(folder: Path) -> Iterator[Given]:
    with _catalog(SPOOL, folder) as source:
        [file] = (folder / "catalog-warehouse" / "cirron" / "spans").rglob("*.parquet")
        file.write_bytes(file.read_bytes()[:-50])
        yield source


SOURCES: dict[str, SourceCase] = {
    "spool": SourceCase(_spool, _damaged_spool, lambda folder: Given(str(folder / "absent"))),
    "batch": _written("batch", ".json"),
    "otlp-json": _written("otlp-json", ".jsonl"),
    "otlp-proto": _written("otlp-proto", ".binpb"),
    "cirron-proto": _written("cirron-proto"),
    "jaeger": _backend("jaeger"),
    "tempo": _backend("tempo"),
    "sqlite": _database("sqlite"),
    "postgresql": _database("postgresql"),
    "stormlog": SourceCase(
        _stormlog, _damaged_stormlog, lambda folder: Given(f"stormlog:{folder}/absent")
    ),
    "traceml": SourceCase(
        _traceml, _damaged_traceml, lambda folder: Given(f"traceml:{folder}/absent")
    ),
    "dgrr": SourceCase(_dgrr, _damaged_dgrr, lambda folder: Given(f"dgrr:{folder}/absent")),
    "parquet": SourceCase(
        _tables, _damaged_tables, lambda folder: Given(f"parquet:{folder}/absent")
    ),
    "iceberg": SourceCase(
        _catalog, _damaged_catalog, lambda folder: Given(f"iceberg:{folder}/absent")
    ),
    "tar": _written("tar"),
}

TARGETS: dict[str, str] = {
    "spool": "out",
    "batch": "",
    "otlp-json": "out.jsonl",
    "otlp-proto": "out.binpb",
    "cirron-proto": "out",
    "stormlog": "out",
    "traceml": "out",
    "dgrr": "out",
    "parquet": "out",
    "iceberg": "out",
    "tar": "out",
}
"""By row: the name of a target; a batch file has the name of its batch."""

FIGURES = {"steps-csv": "out.csv", "steps-parquet": "out.parquet"}
"""The targets that contain figures computed from the batches (tests/tools/frames)."""


def name_of_target(name: str, spool: Path) -> str:
    """The name of a target for the batches of a spool."""
    return TARGETS[name] or min(spool.rglob("*.json")).name


def spool_of_recording(name: str, folder: Path) -> Path:
    """A spool that the row of an importer can hold."""
    convert(ConvertRequest(f"{name}:{RECORDINGS[name]}", f"{folder}/recorded"))
    return folder / "recorded"


def spool_of_one_batch(folder: Path, *names: str) -> Path:
    """A spool with one batch, which the rows of these names can hold."""
    for name in names:
        if name in RECORDINGS:
            return spool_of_recording(name, folder)
    first = min(SPOOL.rglob("*.json"))
    (folder / "one" / "spool").mkdir(parents=True)
    shutil.copy(first, folder / "one" / "spool")
    return folder / "one"


def spool_for(name: str, folder: Path) -> Path:
    """The largest spool that a row can hold."""
    if name in RECORDINGS:
        return spool_of_recording(name, folder)
    return spool_of_one_batch(folder) if name == "batch" else SPOOL


def contents(source: Given, folder: Path) -> dict[str, object]:
    """The batches of a source, read by `convert` into a new spool, by name."""
    report = convert(ConvertRequest(source.argument, str(folder), source_format=source.format))
    assert not report.skipped
    return batches(folder)
