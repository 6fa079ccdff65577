"""Every record comes back from the real Jaeger and the real Tempo."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel import exactjson
from tests.kit.backends.run import Jaeger
from tests.kit.backends.tempo import Tempo
from tests.kit.spools.comparing import (
    assert_same,
    batches,
    cirron_otel,
    recorded,
)
from tests.system.backends.through import messages_of
from tests.tools.conftest import environment

from .backends import (
    STORAGES,
    Store,
    spans_in,
    without,
)

CALLER_SPAN = "b7ad6b7169203331"
ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.backends


def record(directory: Path) -> Path:
    """Record a run of our own SDK that uses every field of a record, below a caller of its own."""
    caller = f"00-{os.urandom(16).hex()}-{CALLER_SPAN}-01"
    program = (
        "import sys; from tests.system.backends import own_run;"
        f" own_run.CALLER = {caller!r}; own_run.main(sys.argv[1])"
    )
    command = [sys.executable, "-c", program, str(directory)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(OTEL_SERVICE_NAME="cirron"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module", params=STORAGES)
def store(request: pytest.FixtureRequest) -> Store:
    backend: Jaeger | Tempo
    backend = request.getfixturevalue(request.param.replace(" ", "_"))
    return Store(request.param, backend)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("back")


@pytest.fixture(scope="module")
def everything(folder: Path) -> Path:
    """A directory with the spools of all recordings, and of a run of our own SDK."""
    for spool in recorded():
        shutil.copytree(spool, folder / "recorded" / spool.name)
    record(folder / "recorded" / "own")
    return folder / "recorded"


@pytest.fixture(scope="module")
def otlp(everything: Path) -> dict[str, list[TracesData]]:
    """The OTLP messages of each spool."""
    found = {}
    for spool in sorted(path for path in everything.iterdir() if path.is_dir()):
        file = everything / f"{spool.name}.binpb"
        cirron_otel("convert", spool, file, expected=int(bool(list(spool.rglob("*.json.tmp")))))
        found[spool.name] = messages_of(file)
    return found


@pytest.fixture(scope="module")
def sent(otlp: dict[str, list[TracesData]], store: Store) -> dict[str, list[str]]:
    """Send everything to the store; return the trace ids of each spool."""
    spans = {name: [*spans_in(messages)] for name, messages in otlp.items()}
    store.send([TracesData.FromString(b"".join(map(TracesData.SerializeToString, messages)))
        for messages in otlp.values()])  # fmt: skip
    store.wait(span for each in spans.values() for span in each)
    return {name: sorted({span.trace_id.hex() for span in each}) for name, each in spans.items()}


def records(of: dict[str, Any], kind: str) -> dict[str, Any]:
    return {each["id"]: each for batch in of.values() for each in batch[kind]}


def by_id(spool: Path, kind: str) -> dict[str, Any]:
    return records(batches(spool), kind)


def plain(span: dict[str, Any]) -> dict[str, Any]:
    """Return a span without the trace id that its batch also has, and without its links' flags."""
    otel = {key: value for key, value in span.get("otel", {}).items() if key != "trace_id"}
    for link in otel.get("links", ()):
        link.pop("flags", None)
    return {key: value for key, value in span.items() if key != "otel"} | (
        {"otel": otel} if otel else {}
    )


def test_all_recordings_come_back(
    store: Store, everything: Path, sent: dict[str, list[str]], tmp_path: Path
) -> None:
    what = "&".join(f"trace={each}" for ids in sent.values() for each in ids)
    code, report, _ = store.back(what, tmp_path / "back")
    backend = report["backend"]
    assert (code, report["incomplete"]) == (1, [])
    found = batches(tmp_path / "back")
    truth = {name: batch for each in sent for name, batch in batches(everything / each).items()}
    if store.name == "jaeger on disk":
        gone = [text for text in backend["missing"] if "attributes of scopes are gone" in text]
        assert len(gone) == report["backend"]["traces"]
        compare_records(found, truth)
    elif store.name == "tempo":
        gone = []
        assert_same_but_for_flags(found, truth)
    else:
        gone = []
        assert_same(found, truth)
    # The caller of our own run does not exist, and the parents of a killed process's scopes were
    # never recorded: nothing else is missing.
    dangling = sorted(text.partition(":")[2] for text in set(backend["missing"]) - set(gone))
    assert len(dangling) == 3
    assert f" span {CALLER_SPAN}, the parent of 1 span, is not there" in dangling[2]
    assert all("the parent of" in text for text in dangling)


def assert_same_but_for_flags(found: dict[str, Any], truth: dict[str, Any]) -> None:
    assert found.keys() == truth.keys()
    flags = 0
    for name, batch in truth.items():
        for span in batch["spans"]:
            flags += sum("flags" in link for link in span.get("otel", {}).get("links", ()))
        for each in (batch, found[name]):
            for span in each["spans"]:
                for link in span.get("otel", {}).get("links", ()):
                    link.pop("flags", None)
        assert exactjson.equal(found[name], batch), name
    assert flags == 1


def compare_records(found: dict[str, Any], truth: dict[str, Any]) -> None:
    """Check that the records are the same in any batches, except for the documented losses."""
    for kind in ("spans", "marks", "snapshots"):
        there, here = records(truth, kind), records(found, kind)
        assert here.keys() == there.keys()
        for key, each in there.items():
            left, right = (plain(each), plain(here[key])) if kind == "spans" else (each, here[key])
            for part in (left, right):
                as_badger(part)
            assert exactjson.equal(left, right), (kind, key)


def as_badger(part: dict[str, Any]) -> None:
    """Apply Badger's documented changes: -0.0 has no sign, lists and maps are JSON text, etc."""
    if part.get("value") == 0:
        part["value"] = abs(part["value"])
    for key, value in part.get("attrs", {}).items():
        if isinstance(value, (list, dict)):
            part["attrs"][key] = exactjson.dumps(value).decode()
    for link in part.get("otel", {}).get("links", ()):
        link.pop("attributes", None)


def test_a_session_is_followed_through_its_chain(
    store: Store, everything: Path, sent: dict[str, list[str]], tmp_path: Path
) -> None:
    spans = by_id(everything / "own", "spans").values()
    session = next(span["id"] for span in spans if span["name"] == "cirron.session")
    assert len(sent["own"]) == 4
    # The session joined another trace, so its id is not the trace's; one trace has no link to it.
    code, report, err = store.back(f"session={session}", tmp_path / "session")
    assert report["backend"]["traces"] == 4, err
    assert len(by_id(tmp_path / "session", "spans")) == len(spans)
    if store.name != "jaeger on disk":
        assert (code, report["backend"]["missing"], report["incomplete"]) == (0, [], [])


def test_any_of_its_traces_brings_the_others(
    store: Store, everything: Path, sent: dict[str, list[str]], tmp_path: Path
) -> None:
    count = len(by_id(everything / "own", "spans"))
    for trace_id in sent["own"][1:3]:
        _, report, _ = store.back(f"trace={trace_id}", tmp_path / trace_id)
        # Without headers nothing shows that a trace without links belongs to the session.
        alone = store.name == "jaeger on disk"
        assert report["spans"] in ((count, count - 1, 1) if alone else (count,))


def test_all_of_a_service(store: Store, sent: dict[str, list[str]], tmp_path: Path) -> None:
    start = "start=2026-11-15T00:00:00Z"
    # Tempo's search does not find spans at first if they are sent long after they were recorded.
    searched = ["own"] if store.name == "tempo" else sent
    traces = len({trace_id for name in searched for trace_id in sent[name]})
    found = store.eventually(f"service=cirron&{start}", tmp_path, traces)
    assert found["backend"]["traces"] >= traces
    code, report, _ = store.back(f"service=cirron&limit=2&{start}", tmp_path / "limited")
    assert code == 1
    assert any("more than 2 traces" in text for text in report["backend"]["missing"])


def named(messages: list[TracesData], name: str) -> list[tuple[bytes, bytes]]:
    return [(span.trace_id, span.span_id) for span in spans_in(messages) if span.name == name]


@pytest.mark.parametrize("backend", ["jaeger", "tempo"])
def test_missing_traces_and_spans_are_reported(
    backend: str, folder: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store = Store(backend, request.getfixturevalue(backend))
    spool = record(tmp_path / "run")
    cirron_otel("convert", spool, tmp_path / "run.binpb")
    messages = messages_of(tmp_path / "run.binpb")
    segments = named(messages, "cirron.continuation")
    lost_trace = segments[0][0]
    session_trace, _ = named(messages, "cirron.session")[0]
    lost_span = next(ids for ids in named(messages, "forward") if ids[0] == session_trace)
    left = without([without(messages, lost_trace)], *lost_span)
    store.send([left])
    store.wait(spans_in([left]))
    code, report, err = store.back(f"trace={session_trace.hex()}", tmp_path / "back")
    missing = "\n".join(report["backend"]["missing"])
    assert code == 1
    assert f"trace {lost_trace.hex()}, linked to by the cirron.segment span" in missing
    assert "is not there" in err
    assert report["incomplete"]
    lost = len(by_id(spool, "spans")) - len(by_id(tmp_path / "back", "spans"))
    assert lost == 1 + sum(
        not any(pair.key == "cirron.synthetic" for pair in span.attributes)
        for span in spans_in(messages)
        if span.trace_id == lost_trace
    )


def test_reports_and_exports_read_backends_too(
    jaeger: Jaeger, tempo: Tempo, everything: Path, tmp_path: Path
) -> None:
    spool = everything / "01_torch_basic"
    here, there = Store("jaeger", jaeger), Store("tempo", tempo)
    spans = here.export_to(spool, tmp_path / "sent.binpb")
    what = f"trace={spans[0].trace_id.hex()}"
    assert (
        cirron_otel("report", here.address(what))["ranks"] == cirron_otel("report", spool)["ranks"]
    )
    difference = cirron_otel("diff", here.address(what), spool)
    assert difference["a"]["steps"] == difference["b"]["steps"] > 0
    accepted = cirron_otel(
        "export",
        here.address(what),
        OTEL_EXPORTER_OTLP_ENDPOINT=tempo.otlp_http,
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
    )["accepted"]
    # Jaeger keeps each copy of a span that other tests have sent, some of them only in part.
    assert accepted >= len(spans)
    there.wait(spans)
    there.back(what, tmp_path / "back")
    assert_same(batches(tmp_path / "back"), batches(spool))
