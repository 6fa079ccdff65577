"""Spools whose batches name their session: conversion, following and selection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from cirron_otel import exactjson
from cirron_otel.core.otlp.files import read_messages
from cirron_otel.core.otlp.formats import Encoding, Format
from cirron_otel.core.placement.batch_outline import outline_of, read_outline
from cirron_otel.core.placement.segments import SEGMENT_RECORDS
from cirron_otel.core.placement.session_index import SessionIndex
from cirron_otel.core.translator.own.own import plan_of
from cirron_otel.core.translator.translate import encode_own
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from cirron_otel.tools.convert.select import Selection
from cirron_otel.tools.convert.selecting import Selector
from tests.core.translator.test_lossless import PHASES, SLOW
from tests.kit.examples import examples
from tests.kit.generators import strategies as gen
from tests.kit.spools.comparing import assert_same, batches, spans_of
from tests.perf.bench import workload


def own_spool(folder: Path, number: int = 30) -> dict[str, bytes]:
    """Write a spool whose batches name their session to `folder`; return its files by name."""
    files = {}
    made = list(workload.batches(number))
    session = orjson.loads(made[-1][1])["spans"][-1]["id"]
    (folder / "spool").mkdir(parents=True)
    for name, data in made:
        batch = orjson.loads(data) | {"otel": {"session": session, "trace_id": session}}
        files[name] = orjson.dumps(batch)
        (folder / "spool" / name).write_bytes(files[name])
    return files


def test_a_conversion_gives_the_bytes_of_live_export_and_the_files_back(tmp_path: Path) -> None:
    files = own_spool(tmp_path / "in")
    target = tmp_path / "traces.binpb"
    convert(ConvertRequest(str(tmp_path / "in"), str(target)))
    with target.open("rb") as stream:
        messages = [m.data for m in read_messages(stream, Format(Encoding.PROTO))]
    assert messages == [encode_own(data, name) for name, data in sorted(files.items())]
    assert len({span.trace_id for span in spans_of(target)}) == 1, "it says one trace"
    assert sum(len(orjson.loads(d)["spans"]) for d in files.values()) > 2 * SEGMENT_RECORDS
    convert(ConvertRequest(str(target), str(tmp_path / "back")))
    back = {p.name: p.read_bytes() for p in (tmp_path / "back" / "spool").iterdir()}
    assert back == files


def test_such_batches_are_decided_and_never_counted(tmp_path: Path) -> None:
    index = SessionIndex()
    files = own_spool(tmp_path, 10)
    read: list[str] = []
    for name, data in files.items():
        batch = read_outline(data)
        index.observe(batch, name)
        assert index.undecided(batch) == set()
        index.count(batch)
    index.count_all(read.append)
    assert read == []
    assert index._segments._weights == {}
    index.close()


def test_session_is_selected_by_the_id_in_its_batches(tmp_path: Path) -> None:
    own_spool(tmp_path / "in", 2)
    session = read_outline((sorted((tmp_path / "in/spool").iterdir()))[0].read_bytes()).session
    assert session is not None
    for wanted, kept in ((session, 3), ("f" * 32, 0)):
        select = Selection.parse([f"session={wanted}"])
        report = convert(
            ConvertRequest(str(tmp_path / "in"), str(tmp_path / wanted), select=select)
        )
        assert report.batches == kept
    assert_same(batches(tmp_path / session), batches(tmp_path / "in"))


def test_scopes_that_are_open_are_selected_like_others() -> None:
    session = gen.SESSION_ID
    running = [
        {"id": f"{n:016x}{gen.LOWER}", "name": "epoch", "index": n, "start_ns": 5,
         "parent_id": session} for n in (1, 2)
    ]  # fmt: skip
    mark = {"id": "a" * 32, "span_id": running[1]["id"], "ts_ns": 1, "name": "loss"}
    epoch = {"id": running[1]["id"], "name": "epoch", "index": 2, "parent_id": session}
    otel = {"session": session, "running": running}
    batch: dict[str, Any] = {
        "schema_version": 1, "batch_id": "c" * 32, "spans": [], "marks": [mark], "otel": otel,
    }  # fmt: skip
    index = SessionIndex()
    index.observe(outline_of(batch))
    index.observe(outline_of({"spans": [epoch], "otel": {"session": session}}))
    chosen = Selector(Selection.parse(["epoch=2"]), index).apply(batch)
    assert chosen is not None
    assert (chosen["marks"], chosen["otel"]["running"]) == ([mark], [running[1]])
    assert batch["otel"]["running"] == running, "the input was changed"
    assert Selector(Selection.parse(["epoch=3"]), index).apply(batch) is None
    index.close()


@settings(max_examples=examples(300), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@given(made=gen.batches, otel=gen.own_otel)
def test_the_quick_look_and_the_translation_agree_on_the_session(made: Any, otel: Any) -> None:
    data = exactjson.dumps(made | {"otel": otel})
    plan = plan_of(exactjson.loads(data))
    assert read_outline(data).session == (plan.default if plan is not None else None)
    assert outline_of(exactjson.loads(data)).session == read_outline(data).session


@settings(max_examples=100, deadline=None)
@given(text=st.sampled_from(['{"session":1}', "5", "[]", "null", '{"session":{"a":1}}']))
def test_an_otel_of_another_kind_names_nothing(text: str) -> None:
    data = b'{"schema_version":1,"spans":[],"otel":%b}' % text.encode()
    assert read_outline(data).session is None
