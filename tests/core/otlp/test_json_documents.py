"""Several JSON documents in one file, in any layout, and damage among them."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.core.otlp.json_codec import traces_to_json
from tests.kit.examples import examples
from tests.kit.generators import otlp_messages as generated

from .streams import JSON, Dripping, buffered, line, names, read_until_error, traces

LAYOUTS = {
    "compact": lambda value: json.dumps(value, separators=(",", ":")),
    "indented by 2": lambda value: json.dumps(value, indent=2),
    "indented by a tab": lambda value: json.dumps(value, indent="\t"),
    "not indented": lambda value: json.dumps(value, indent=0),
    "open first line": lambda value: json.dumps(value).replace('": [', '":\n[', 1),
    "comma first": lambda value: json.dumps(value).replace(", ", "\n , "),
    "indented as a whole": lambda value: "  " + json.dumps(value, indent=2).replace("\n", "\n  "),
}
GAPS = ("\n", "", "\n\n", "\r\n", " ", " \n\t")


def named(name: str) -> dict[str, object]:
    """A document whose name is a hostile string: it contains brackets, quotes and backslashes."""
    value: dict[str, object] = json.loads(traces_to_json(traces(name)))
    return value


def read(text: str, step: int = 1 << 20) -> tuple[list[str], list[tuple[int, str]]]:
    """Return the names of the spans, and the problems; the text arrives `step` bytes at a time."""
    problems: list[tuple[int, str]] = []
    stream = buffered(Dripping(text.encode(), step), step)
    found, error = read_until_error(
        stream, JSON, on_error=lambda *problem: problems.append(problem)
    )
    assert error == ""
    return names(found), problems


HOSTILE = ["a", '}{"[', "\\", '{"resourceSpans":[', "]}]}]}]}", "é\n{", '\\\\"}']


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(HOSTILE), st.sampled_from(sorted(LAYOUTS)), st.sampled_from(GAPS)
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([1, 2, 7, 64, 1 << 20]),
)
def test_documents_in_any_layout_are_read_in_order(
    parts: list[tuple[str, str, str]], step: int
) -> None:
    text = "".join(LAYOUTS[layout](named(name)) + gap for name, layout, gap in parts)
    assert read(text, step) == ([f"{name}0" for name, _, _ in parts], [])


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(generated.traces(), min_size=1, max_size=4), st.integers(0, 2**32))
def test_any_messages_in_any_layout_are_read_in_order(
    messages: list[TracesData], seed: int
) -> None:
    rng = Random(seed)
    parts = [
        LAYOUTS[rng.choice(sorted(LAYOUTS))](json.loads(traces_to_json(message)))
        for message in messages
    ]
    text = "".join(part + rng.choice(GAPS) for part in parts)
    found, error = read_until_error(text.encode(), JSON)
    assert error == ""
    assert [TracesData.FromString(each.data) for each in found] == messages


def test_the_position_of_a_document_is_its_first_line() -> None:
    pretty = LAYOUTS["indented by 2"](named("a"))
    text = f"{pretty}\n\n{pretty}{pretty}\n{line('b').decode()}"
    found, _ = read_until_error(text.encode(), JSON)
    lines = pretty.count("\n") + 1
    assert [each.position for each in found] == [1, lines + 2, 2 * lines + 1, 3 * lines + 1]
    assert [each.size for each in found] == [len(pretty)] * 3 + [len(line("b")) - 1]


@pytest.mark.parametrize(
    ("layout", "step"), [("indented by 2", 1 << 20), ("indented by a tab", 50)]
)
def test_a_damaged_document_costs_no_other_one(layout: str, step: int) -> None:
    documents = [LAYOUTS[layout](named(name)) for name in "abc"]
    middle = documents[1].split("\n")
    for cut in range(1, len(middle)):
        for damaged in (middle[:cut], [*middle[:cut], ' "never ends', *middle[cut:]]):
            text = "\n".join([documents[0], *damaged, documents[2], ""])
            found, problems = read(text, step)
            assert found == ["a0", "c0"], text
            (problem,) = problems
            assert problem[0] == documents[0].count("\n") + 2
            assert problem[1].startswith("not JSON: ")


def test_a_line_that_is_cut_off_costs_no_other_line() -> None:
    whole = line("b").decode().removesuffix("\n")
    for cut in range(1, len(whole)):
        found, problems = read(f"{line('a').decode()}{whole[:cut]}\n{line('c').decode()}")
        assert found == ["a0", "c0"], whole[:cut]
        assert [position for position, _ in problems] == [2]


def test_many_documents_in_one_line_are_split_once() -> None:
    """Repeated copies of the rest of the line would take hours."""
    count = 100_000
    found, error = read_until_error(line("a").rstrip() * count, JSON)
    assert (len(found), error) == (count, "")


def test_strings_that_do_not_end_are_scanned_once() -> None:
    """A scan of the rest of the line for each quote would take hours."""
    damaged = '{"a":"' + '\\"' * 300_000
    found, problems = read(f"{line('a').decode().rstrip()}{damaged}\n{line('b').decode()}")
    assert (found, len(problems)) == (["a0", "b0"], 1)


def test_a_document_is_scanned_once_whatever_its_indentation() -> None:
    """A scan of all earlier lines for each line would take hours."""
    text = "{\n\n" + "\n".join(['"resourceSpans":[', *["{},", "  {},"] * 100_000, "{}", "]", "}"])
    assert read(text) == ([], [])


@pytest.mark.parametrize("text", ['{"resourceSpans":[]} x', '{"resourceSpans":[]},{}', "[]{}"])
def test_text_after_a_document_is_refused(text: str) -> None:
    found, problems = read(text)
    assert (found, len(problems)) == ([], 1)


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS) - {"compact"}))
@pytest.mark.parametrize("step", [7, 1 << 20])
def test_the_size_limit_holds_for_a_document_over_several_lines(layout: str, step: int) -> None:
    text = LAYOUTS[layout](named("a")).strip()
    if "\n" not in text:
        text = text.replace("[", "[\n ", 1)
    for limit, expected in ((len(text), ["a0"]), (len(text) - 1, [])):
        stream = buffered(Dripping(f"{text}\n".encode(), step), step)
        found, error = read_until_error(stream, JSON, max_bytes=limit)
        assert (names(found), "document longer than the limit" in error) == (
            expected, not expected,
        ), limit  # fmt: skip
