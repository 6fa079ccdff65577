"""Selections by a prefix of a session's id, and selections that nothing matches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cirron_otel.errors import UsageError
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from cirron_otel.tools.convert.select import Selection
from tests.kit.spools.comparing import batches

from .test_hostile_values import batch_with, name_of

NAMED = ("aa10" + "0" * 28, "aa20" + "0" * 28, "bb10" + "0" * 28)
"""Sessions of batches that name their session."""
PLAIN = ("cc10" + "0" * 28, "cc20" + "0" * 28, "short", "shorter")
"""Sessions of batches that do not name their session."""


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    (folder / "spool").mkdir(parents=True)
    for number, session in enumerate((*NAMED, *PLAIN), 1):
        batch = json.loads(batch_with("1", number))
        if session in NAMED:
            batch["otel"] = {"session": session}
        else:
            batch["spans"][0] |= {"id": session, "name": "cirron.session", "parent_id": None}
        (folder / "spool" / name_of(number)).write_text(json.dumps(batch))
    return folder


def selected(source: Path, target: Path, *expressions: str) -> list[str]:
    """Convert with a selection, and return the sessions of the selected batches."""
    select = Selection.parse(expressions)
    report = convert(ConvertRequest(str(source), str(target), select=select))
    assert report.exit_code == 0
    sessions = dict(zip(map(name_of, range(1, 8)), (*NAMED, *PLAIN), strict=True))
    return [sessions[name] for name in sorted(batches(target))]


@pytest.mark.parametrize("is_otlp", [False, True])
@pytest.mark.parametrize(
    ("prefixes", "expected"),
    [
        (["aa1"], NAMED[:1]),
        (["b"], NAMED[2:]),
        (["aa2", "cc1"], (NAMED[1], PLAIN[0])),
        ([NAMED[0]], NAMED[:1]),
        (["short"], PLAIN[2:3]),
        (["shorte"], PLAIN[3:]),
        (["shorter", "no such"], PLAIN[3:]),
    ],
)
def test_a_prefix_that_fits_one_session_is_that_session(
    spool: Path, prefixes: list[str], expected: tuple[str, ...], is_otlp: bool, tmp_path: Path
) -> None:
    source = spool
    if is_otlp:
        source = tmp_path / "traces.binpb"
        convert(ConvertRequest(str(spool), str(source)))
    found = selected(source, tmp_path / "out", *(f"session={prefix}" for prefix in prefixes))
    assert found == list(expected)


@pytest.mark.parametrize("name", ["out.jsonl", "out"])
def test_an_ambiguous_prefix_is_refused_with_the_candidates(
    spool: Path, name: str, tmp_path: Path
) -> None:
    request = ConvertRequest(
        str(spool), str(tmp_path / name), select=Selection.parse(["session=a"])
    )
    with pytest.raises(UsageError, match=f"matches 2 sessions: {NAMED[0]}, {NAMED[1]}"):
        convert(request)
    assert not (tmp_path / name).exists()


def test_ten_candidates_are_listed() -> None:
    known = [f"aa{number:030d}" for number in range(12)]
    with pytest.raises(UsageError, match="matches 12 sessions") as caught:
        Selection.parse(["session=aa"]).with_sessions(known)
    assert str(caught.value).endswith(f", {known[9]} and 2 more")


def test_session_with_only_marks_is_selected_by_its_prefix(tmp_path: Path) -> None:
    """It is the session of their scope, the scope itself if that is missing, or a named session."""
    folder = tmp_path / "in" / "spool"
    folder.mkdir(parents=True)
    step = f"{7:032x}"
    scopes, marks, named = (json.loads(batch_with("1", number)) for number in (1, 2, 3))
    scopes["spans"][0] |= {"id": step, "parent_id": "dd10" + "0" * 28}
    for batch, span_ids in ((marks, (step, "dd20" + "0" * 28)), (named, ("root",))):
        batch["spans"] = []
        batch["marks"] = [
            {"id": f"{number:032x}", "span_id": span_id, "name": "loss", "value_type": "int",
             "value": 1, "attrs": {}, "ts_ns": 15, "kind": "point"}
            for number, span_id in enumerate(span_ids, 8)
        ]  # fmt: skip
    named["otel"] = {"session": "ee10" + "0" * 28}
    for number, batch in enumerate((scopes, marks, named), 1):
        (folder / name_of(number)).write_text(json.dumps(batch))
    for prefix, expected in (("dd1", [0, 1]), ("dd2", [1]), ("ee1", [1])):
        select, target = Selection.parse([f"session={prefix}"]), tmp_path / prefix
        assert (
            convert(ConvertRequest(str(tmp_path / "in"), str(target), select=select)).exit_code == 0
        )
        assert [len(batch["marks"]) for _, batch in sorted(batches(target).items())] == expected


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("is_otlp", [False, True])
@pytest.mark.parametrize("name", ["out.jsonl", "out.binpb.gz", "out", "out.json"])
@pytest.mark.parametrize("expression", ["session=9", f"session={'9' * 32}", "name=x", "rank=7"])
def test_a_selection_that_nothing_matches_leaves_the_target_alone(
    spool: Path, name: str, expression: str, is_there: bool, is_otlp: bool, tmp_path: Path
) -> None:
    source, target = spool, tmp_path / name
    if is_otlp:
        source = tmp_path / "traces.binpb"
        convert(ConvertRequest(str(spool), str(source)))
    if is_there:
        target.write_bytes(b"as it was")
    to = "batch" if name == "out.json" else None
    select = Selection.parse([expression])
    report = convert(ConvertRequest(str(source), str(target), select=select, target_format=to))
    assert report.exit_code == 1
    assert [finding.code for finding in report.skipped] == ["nothing-selected"]
    assert target.read_bytes() == b"as it was" if is_there else not target.exists()
