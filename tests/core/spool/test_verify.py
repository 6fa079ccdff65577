"""Verification of a whole spool: what its files say of each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.analysis import verify
from cirron_otel.core.analysis.verify import verify_spool
from cirron_otel.core.records.problems import ReadingProblem
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.core.spool.writer import SpoolWriter
from tests.kit.spools.made import (
    encoded,
    made,
    mark,
    snapshot,
    span,
    span_id,
)
from tests.kit.spools.recorded import NAMES, SPOOLS, copy_of


def spool_of(root: Path, *batches: dict[str, Any]) -> Path:
    writer = SpoolWriter(root, max_bytes=None)
    for batch in batches:
        writer.write(encoded(batch))
    return root


def verified(root: Path) -> list[ReadingProblem]:
    return list(verify_spool(SpoolReader(root)))


def codes(root: Path) -> list[tuple[str, str]]:
    return [(finding.severity, finding.code) for finding in verified(root)]


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"23_sigkill_plus_stray_tmp"}))
def test_unbroken_recordings_have_no_errors(name: str) -> None:
    assert [f for f in verified(SPOOLS / name) if f.severity == "error"] == []


def test_the_killed_recording() -> None:
    found = verified(SPOOLS / "23_sigkill_plus_stray_tmp")
    assert [(f.severity, f.code) for f in found] == [
        ("error", "torn"),
        ("note", "parent-unknown"),
        ("note", "owner-unknown"),
    ]
    assert found[0].name == "11795198089775934094-45c33e2b9408476586136304bc3930b2.json.tmp"


def test_findings_are_json() -> None:
    for finding in verified(SPOOLS / "17_lone_surrogates_and_odd_names"):
        assert set(json.loads(json.dumps(finding.to_json()))) == {
            "name", "code", "message", "severity", "path",
        }  # fmt: skip


def test_unreadable_file_is_reported_with_the_marks_it_leaves_missing(tmp_path: Path) -> None:
    root = copy_of("01_torch_basic", tmp_path)
    first, *_ = sorted((root / "spool").iterdir())
    first.write_bytes(first.read_bytes()[:500])
    found = verified(root)
    assert [f.name for f in found if f.code == "not-json"] == [first.name]
    # And what the others say of the records that were in it.
    assert {f.code for f in found} == {"not-json", "mark-missing"}


def test_a_copied_batch_is_a_note_and_another_one_an_error(tmp_path: Path) -> None:
    batch = made(1, spans=[span(1)])
    spool_of(tmp_path, batch)
    writer = SpoolWriter(tmp_path, max_bytes=None)
    writer.write(encoded(batch), "copy.json")
    writer.write(encoded(batch | {"spans": [span(1, name="other")]}), "other.json")
    found = {(f.name, f.severity, f.code) for f in verified(tmp_path)}
    assert found == {
        ("copy.json", "error", "file-name"),
        ("other.json", "error", "file-name"),
        ("copy.json", "note", "repeated-batch"),
        ("copy.json", "note", "repeated-id"),
        ("other.json", "error", "repeated-batch"),
        ("other.json", "error", "repeated-id"),
    }


@pytest.mark.parametrize("key", ["spans", "marks", "snapshots"])
def test_repeated_ids(tmp_path: Path, key: str) -> None:
    first = {"spans": span(1), "marks": mark(1, "root"), "snapshots": snapshot(1, 2)}[key]
    second = first | {"attrs": {"a": 1}}
    home = made(3, spans=[span(2)])
    assert codes(spool_of(tmp_path / "a", home, made(1, **{key: [first, first]}))) == [
        ("note", "repeated-id")
    ]
    root = spool_of(tmp_path / "b", home, made(1, **{key: [first]}), made(2, **{key: [second]}))
    [finding] = verified(root)
    assert (finding.severity, finding.code, finding.path) == (
        "error", "repeated-id", f"$.{key}[0].id",
    )  # fmt: skip
    assert f"{2:032x}" in finding.name


def test_ids_that_share_their_first_half(tmp_path: Path) -> None:
    session = span(1, name="cirron.session")
    first, second = f"{9:016x}{1:016x}", f"{9:016x}{2:016x}"
    inside = [span(2, 1, id=first), span(3, 1, id=second)]
    [finding] = verified(spool_of(tmp_path / "a", made(1, spans=[session, *inside])))
    assert (finding.severity, finding.code) == ("error", "id-clash")
    assert f"{first} and {second}" in finding.message
    # Of two sessions, each has a trace of its own.
    other = span(4, name="cirron.session", pid=2)
    apart = [inside[0], inside[1] | {"parent_id": span_id(4), "pid": 2}]
    assert codes(spool_of(tmp_path / "b", made(1, spans=[session, other, *apart]))) == []


def test_dangling_references_are_reported(tmp_path: Path) -> None:
    missing = f"{99:032x}"
    root = spool_of(
        tmp_path,
        made(1, spans=[span(1, 50), span(2, 50), span(3, mark_ids=[missing])]),
        made(2, marks=[mark(1, 60), mark(2, "root"), mark(3, 3)]),
        made(3, snapshots=[snapshot(1, 60), snapshot(2, 3)]),
    )
    found = [(f.severity, f.code, f.message.split(",")[0]) for f in verified(root)]
    assert found == [
        ("note", "parent-unknown", f"2 spans have the parent '{span_id(50)}'"),
        ("note", "owner-unknown", f"1 marks belong to '{span_id(60)}'"),
        ("note", "owner-unknown", f"1 snapshots belong to '{span_id(60)}'"),
        ("note", "mark-missing", f"mark_ids of '{span_id(3)}' lists 1 marks that are in no file: "
                                 "dropped"),
        ("note", "mark-unlisted", f"1 marks of '{span_id(3)}' are not listed in its mark_ids"),
    ]  # fmt: skip


def test_findings_of_a_kind_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_MAX_OF_A_KIND", 3)
    root = spool_of(tmp_path, made(1, spans=[span(n, 100 + n) for n in range(9)]))
    assert codes(root) == [("note", "parent-unknown")] * 3


class TestBlobs:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """Recording 18, moved: the blobs of its last batch lie beside it."""
        return copy_of("18_http_wire", tmp_path)

    @staticmethod
    def weights(root: Path) -> Path:
        return root / "snapshots/4836e394ae9162a80489c2cef30f0293/weights.safetensors"

    def test_a_moved_spool(self, root: Path) -> None:
        assert codes(root) == [("note", "blob-moved"), ("note", "blob-key"), ("note", "blob-key"),
                               ("note", "blob-moved")]  # fmt: skip

    def test_uris_that_are_right(self, root: Path) -> None:
        for path in (root / "spool").iterdir():
            text = path.read_text().replace("/dat/r1/real_spool/18_http_wire/.cirron", str(root))
            path.write_text(text)
        # cirron-sdk 0.3.0 stores gradients under the parameter's name.
        assert codes(root) == [("note", "blob-key"), ("note", "blob-key")]

    def test_a_missing_file(self, root: Path) -> None:
        self.weights(root).unlink()
        assert ("error", "blob-missing") in codes(root)

    @pytest.mark.parametrize(
        "content", [b"", b"\0" * 8, b"\xff" * 200, b"\x05" + b"\0" * 7 + b"[{}"]
    )
    def test_a_broken_file(self, root: Path, content: bytes) -> None:
        self.weights(root).write_bytes(content)
        assert ("error", "blob-broken") in codes(root)

    def test_a_file_cut_off_anywhere(self, root: Path) -> None:
        whole = self.weights(root).read_bytes()
        for size in (0, 7, 8, 20, len(whole) // 2, len(whole) - 1):
            self.weights(root).write_bytes(whole[:size])
            assert ("error", "blob-broken") in codes(root)
        self.weights(root).write_bytes(whole + b"\0")
        assert ("error", "blob-broken") in codes(root)

    def test_a_file_without_the_tensor(self, root: Path) -> None:
        path = self.weights(root)
        path.write_bytes(path.read_bytes().replace(b'"weight"', b'"weighs"'))
        assert ("error", "blob-tensor") in codes(root)

    def test_a_file_that_nothing_names(self, root: Path) -> None:
        (root / "snapshots" / span_id(1)).mkdir()
        (root / "snapshots" / span_id(1) / "weights.safetensors").touch()
        [extra] = [f for f in verified(root) if f.code == "blob-extra"]
        assert extra.name == f"snapshots/{span_id(1)}/weights.safetensors"
        assert extra.severity == "note"

    @pytest.mark.parametrize("uri", ["file:///dev/zero", "file://\0", "x" * 5000, "file://", ""])
    def test_odd_uris(self, tmp_path: Path, uri: str) -> None:
        odd = snapshot(1, 1, mode="full", blob_uri=uri)
        assert codes(spool_of(tmp_path, made(1, spans=[span(1)], snapshots=[odd]))) == [
            ("error", "blob-missing")
        ]
