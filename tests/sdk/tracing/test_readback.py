"""trace(): the last scopes of the session, read back."""

from __future__ import annotations

import importlib.util
import json
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from cirron_otel.errors import UsageError
from cirron_otel.sdk.flush.batch_text import Text, batch_text
from cirron_otel.sdk.flush.rows import SpanRow
from cirron_otel.sdk.session.readback import MARKS_PER_SPAN, MAX_LEVELS, Recent
from cirron_otel.sdk.session.tree_text import duration
from cirron_otel.sdk.tracing.loops import batches, epochs
from cirron_otel.sdk.tracing.mark import mark
from cirron_otel.sdk.tracing.scope import Scope
from cirron_otel.sdk.tracing.span_processor import ForeignSpanProcessor
from tests.sdk.conftest import OpenSession

Open = Callable[..., OpenSession]
LENGTH = re.compile(r"— \d+(us|\.\dms|\.\d\ds)")
KEYS = [
    "id", "parent_id", "name", "index", "start_ns", "end_ns", "wall_us", "cpu_ns", "gpu_ns",
    "memory_peak_bytes", "attrs", "marks", "children",
]  # fmt: skip
"""The keys of a node, in the order of cirron-sdk 0.3.0."""


def shape(nodes: list[Any]) -> list[Any]:
    """Names, indices and children."""
    return [(node["name"], node["index"], shape(node["children"])) for node in nodes]


def train() -> None:
    for _ in epochs(range(2)):
        for index in batches(range(2)):
            with Scope("forward", kind="x"):
                mark("loss", index / 4, tag="a")
            with Scope("io", 5):
                pass
        mark("acc", float("nan"), kind="summary")
    mark("outside", 1)


def test_read_prints_the_scope_tree(session_with: Open, capsys: pytest.CaptureFixture[str]) -> None:
    recent = Recent(100)
    here = session_with(recent=recent)
    train()
    here.rows()
    assert recent.read() is None
    text = LENGTH.sub("— t", capsys.readouterr().out)
    assert text == "".join(
        f"epoch[{number}] — t {{acc=nan}}\n"
        "  step[0] — t\n    forward — t {loss=0.0000}\n    io[5] — t\n"
        "  step[1] — t\n    forward — t {loss=0.2500}\n    io[5] — t\n"
        for number in range(2)
    )


def test_the_dict_has_cirron_sdks_keys_and_the_records_values(session_with: Open) -> None:
    recent = Recent(100)
    here = session_with(recent=recent)
    with Scope("forward", 3, kind="x"):
        mark("loss", 0.5, tag="a")
        mark("best", float("inf"), kind="summary")
        mark("big", 10**30)
    spans, marks = here.rows()
    found = recent.read("dict")
    row = spans[0]
    assert found == {
        "roots": [
            {
                "id": row.id, "parent_id": here.scope.id, "name": "forward", "index": 3,
                "start_ns": row.start_ns, "end_ns": row.end_ns,
                "wall_us": (row.end_ns - row.start_ns) // 1000,
                "cpu_ns": None, "gpu_ns": None, "memory_peak_bytes": None,
                "attrs": {"kind": "x"},
                "marks": [
                    {"name": "loss", "value": 0.5, "kind": "point"},
                    {"name": "best", "value": None, "kind": "summary", "value_nonfinite": "inf"},
                    {"name": "big", "value": 10**30, "kind": "point"},
                ],
                "children": [],
            }
        ],
        "span_count": 1,
    }  # fmt: skip
    assert list(found["roots"][0]) == KEYS
    assert json.loads(recent.read("json")) == found
    assert any(m.name == "cirron.overhead_ns" for m in marks), "it is in the spool alone"


def test_roots_are_ordered_by_start_time(session_with: Open) -> None:
    recent = Recent(100)
    here = session_with(recent=recent)
    first = Scope("first")
    with first, Scope("inner"):
        thread = threading.Thread(target=lambda: Scope("other").__enter__().end())
        thread.start()
        thread.join()
    here.rows()
    assert shape(recent.read("dict")["roots"]) == [
        ("first", None, [("inner", None, [])]),
        ("other", None, []),
    ]


def test_below_an_open_scope_roots_unless_it_is_asked_for(
    session_with: Open, capsys: pytest.CaptureFixture[str]
) -> None:
    recent = Recent(100)
    here = session_with(recent=recent)
    with Scope("epoch", 0):
        with Scope("step"):
            pass
        mark("loss", 1)
        found = here.collect()
        assert shape(recent.read("dict")["roots"]) == [("step", None, [])]
        roots = recent.read("dict", open_rows=found.open)["roots"]
        assert shape(roots) == [("epoch", 0, [("step", None, [])])]
        assert roots[0]["open"] is True
        assert roots[0]["end_ns"] is None
        assert [m["name"] for m in roots[0]["marks"]] == ["loss"]
        recent.read(open_rows=found.open)
        text = LENGTH.sub("— t", capsys.readouterr().out)
        assert text == "epoch[0] — t {loss=1} (open)\n  step — t\n"


def test_the_session_is_there_once_it_has_ended(session_with: Open) -> None:
    recent = Recent(100)
    here = session_with(recent=recent)
    with Scope("a"):
        pass
    mark("outside", 1)
    here.rows()
    assert shape(recent.read("dict")["roots"]) == [("a", None, [])]
    here.rows(is_last=True)
    (root,) = recent.read("dict")["roots"]
    assert shape([root]) == [("cirron.session", None, [("a", None, [])])]
    assert [m["name"] for m in root["marks"]] == ["outside"]


def test_name_makes_the_outermost_of_that_name_roots(session_with: Open) -> None:
    recent = Recent(100)
    here = session_with(recent=recent)
    with Scope("a"), Scope("n", 1), Scope("n", 2), Scope("leaf"):
        pass
    with Scope("n", 3):
        pass
    here.rows()
    found = recent.read("dict", name="n")
    leaf: list[Any] = [("leaf", None, [])]
    assert shape(found["roots"]) == [("n", 1, [("n", 2, leaf)]), ("n", 3, [])]
    assert found["span_count"] == 4
    assert shape(recent.read("dict", name="n", last=1)["roots"]) == [("n", 3, [])]


@pytest.mark.parametrize(("last", "expected"), [(None, 3), (2, 2), (9, 3), (0, 0), (-1, 0)])
def test_last_keeps_the_last_roots(session_with: Open, last: int | None, expected: int) -> None:
    recent = Recent(100)
    here = session_with(recent=recent)
    for index in range(3):
        with Scope("a", index):
            pass
    here.rows()
    found = recent.read("dict", last=last)
    assert [root["index"] for root in found["roots"]] == [0, 1, 2][3 - expected :]


def test_nothing_to_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert Recent(100).read("dict") == {"roots": [], "span_count": 0}
    Recent(100).read()
    assert capsys.readouterr().out == "(no spans)\n"


@pytest.mark.parametrize("odd", ["xml", None, 3, ["tree"]])
def test_another_format_is_refused(odd: Any) -> None:
    with pytest.raises(ValueError, match="expected 'tree', 'dict', 'json' or 'df'"):
        Recent(100).read(odd)


def test_non_integer_last_is_refused() -> None:
    with pytest.raises(TypeError):
        Recent(100).read("dict", last="1")  # type: ignore[arg-type]


def test_only_the_last_spans_and_marks_are_retained(session_with: Open) -> None:
    recent = Recent(10)
    here = session_with(recent=recent)
    for number in range(35):
        with Scope("a", number):
            for _ in range(6):
                mark("loss", number)
        if number % 4 == 3:
            here.rows()
    here.rows()
    found = recent.read("dict")
    assert [root["index"] for root in found["roots"]] == list(range(25, 35))
    kept = [len(root["marks"]) for root in found["roots"]]
    assert sum(kept) == 10 * MARKS_PER_SPAN
    assert kept == sorted(kept), "the oldest marks went first"
    spans, marks = recent._records()
    assert (len(spans), len(marks)) == (10, 40)


def test_flush_larger_than_the_limit_retains_its_last_spans(session_with: Open) -> None:
    recent = Recent(3)
    here = session_with(recent=recent)
    for number in range(10):
        with Scope("a", number):
            pass
    here.rows()
    assert [root["index"] for root in recent.read("dict")["roots"]] == [7, 8, 9]


def test_limit_of_zero_retains_nothing(session_with: Open) -> None:
    recent = Recent(0)
    here = session_with(recent=recent)
    with Scope("a"):
        mark("loss", 1)
    here.rows()
    assert recent.read("dict")["span_count"] == 0
    assert recent._batches == ()


def test_a_mark_comes_to_its_scope_from_an_earlier_flush(session_with: Open) -> None:
    recent = Recent(100)
    here = session_with(recent=recent)
    with Scope("epoch"):
        mark("loss", 1)
        here.rows()
        mark("loss", 2)
    here.rows()
    assert [m["value"] for m in recent.read("dict")["roots"][0]["marks"]] == [1, 2]


def test_a_tree_too_deep_for_recursion_is_cut(session_with: Open) -> None:
    recent = Recent(10_000)
    here = session_with(recent=recent)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(ForeignSpanProcessor(here.foreign))
    tracer = provider.get_tracer("recursive")

    def call(levels: int) -> None:
        with tracer.start_as_current_span("call"):
            if levels > 1:
                call(levels - 1)

    call(300)
    here.rows()
    found = json.loads(recent.read("json"))
    assert found["span_count"] == 300
    assert len(found["roots"]) == -(-300 // MAX_LEVELS)


def test_spans_that_are_each_others_parent_end_no_reading() -> None:
    def row(own: str, parent: str) -> SpanRow:
        return SpanRow(own, own, parent, None, 1, 2, None, None, None, 0, 0, 0, {}, [])

    recent = Recent(100)
    spans = Text()
    spans.add([row("self", "self"), row("x", "y"), row("y", "x"), row("z", "gone")])
    recent.add(batch_text(spans, Text(), {}, "b" * 32, 1))
    assert shape(recent.read("dict")["roots"]) == [("self", None, []), ("z", None, [])]


def test_reading_while_the_flush_thread_adds(session_with: Open) -> None:
    recent = Recent(200)
    here = session_with(recent=recent)
    done = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not done.is_set():
                found = recent.read("dict")
                assert found["span_count"] <= 200
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(100):
        for _ in range(30):
            with Scope("a"):
                mark("loss", 1)
        here.rows()
    done.set()
    reader.join()
    assert failures == []
    assert recent.read("dict")["span_count"] == 200


def test_the_data_frame(session_with: Open) -> None:
    recent = Recent(100)
    here = session_with(recent=recent)
    with Scope("a", 3):
        mark("loss", 1)
        with Scope("b"):
            pass
    here.rows()
    if importlib.util.find_spec("pandas") is None:
        with pytest.raises(UsageError, match="pip install pandas"):
            recent.read("df")
        return
    frame = recent.read("df")
    assert list(frame.columns) == [
        "id", "parent_id", "name", "index", "wall_us", "cpu_ns", "gpu_ns", "memory_peak_bytes",
        "mark_count", "depth",
    ]  # fmt: skip
    assert list(frame["name"]) == ["b", "a"]
    assert list(frame["depth"]) == [1, 0]
    assert list(frame["mark_count"]) == [0, 1]
    assert recent.read("df", name="zz").empty


@pytest.mark.parametrize(
    ("wall_us", "text"),
    [(0, "0us"), (999, "999us"), (1000, "1.0ms"), (999_949, "999.9ms"), (1_500_000, "1.50s"),
     (3_700_000_000, "3700.00s")],
)  # fmt: skip
def test_lengths_for_people(wall_us: int, text: str) -> None:
    assert duration(wall_us) == text
