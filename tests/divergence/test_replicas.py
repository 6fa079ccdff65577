"""`report` of a run with digests: the replicas whose weights diverge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.dgrr.traces import command
from tests.divergence.spools import Session, changed, from_step, record, session


def report(path: Path) -> Any:
    code, out, problems = command("report", path, "--json")
    assert (code, problems) == (0, "")
    return json.loads(out)["replicas"]


def ranks(count: int, **options: Any) -> list[Session]:
    return [session(rank, pid=rank + 1, **options) for rank in range(count)]


def test_equal_replicas(tmp_path: Path) -> None:
    found = report(record(tmp_path, *ranks(3)))
    assert found == {"groups": [[0, 1, 2]], "compared": 30, "divergences": []}


def test_the_rank_that_differs_is_named_with_the_step(tmp_path: Path) -> None:
    recorded = ranks(4)
    recorded[2] = changed(recorded[2], from_step(12, "weights", "fc.bias", ulps=2))
    path = record(tmp_path, *recorded)
    assert report(path)["divergences"] == [{
        "rank": 2, "step": 12, "epoch": 1, "index": 2, "quantity": "weights", "tensor": "fc.bias",
        "ulp": 2, "ranks": [0, 1, 2, 3], "odd": [2],
    }]  # fmt: skip
    lines = command("report", path)[1].splitlines()
    start = lines.index(
        "DIVERGED: the weights of rank 2 differ from those of ranks 0-1, 3 from step 12"
    )
    assert lines[start + 1] == "  (epoch 1, index 2) on: fc.bias, 2 ULP apart"
    assert command("report", path, "--html", tmp_path / "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert "the weights of rank 2 differ from those of ranks 0-1, 3 from step 12" in page


def test_of_two_ranks_neither_is_to_blame(tmp_path: Path) -> None:
    recorded = ranks(2)
    recorded[0] = changed(recorded[0], from_step(3, "weights", "fc.weight"))
    path = record(tmp_path, *recorded, tensors=False)
    (found,) = report(path)["divergences"]
    assert (found["odd"], found["step"], found["tensor"], found["ulp"]) == ([1], 3, None, None)
    assert "do not show which of the ranks" in " ".join(command("report", path)[1].split())


def test_shards_are_not_compared(tmp_path: Path) -> None:
    assert report(record(tmp_path, *ranks(2, shared=False))) is None
    assert report(record(tmp_path / "one", session())) is None


def test_groups_of_replicas(tmp_path: Path) -> None:
    recorded = ranks(4)
    for each in recorded[2:]:
        for step in each.steps:
            step.tensor("weights", "fc.weight")[0] += 1
    recorded[3] = changed(recorded[3], from_step(20, "weights", "fc.weight"))
    found = report(record(tmp_path, *recorded))
    assert found["groups"] == [[0, 1], [2, 3]]
    assert [(each["ranks"], each["step"]) for each in found["divergences"]] == [([2, 3], 20)]


def own_buffers(recorded: Session) -> None:
    """Statistics that differ by rank in every step, as those of BatchNorm do."""
    for step in recorded.steps:
        step.tensor("weights", "norm.mean")[0] += recorded.pid


def test_replicas_with_buffers_of_their_own(tmp_path: Path) -> None:
    recorded = [changed(each, own_buffers) for each in ranks(3)]
    equal = report(record(tmp_path / "equal", *recorded))
    assert equal == {"groups": [[0, 1, 2]], "compared": 30, "divergences": []}
    for step in (1, 2, 17, 29):
        wrong = changed(recorded[1], from_step(step, "weights", "fc.bias", ulps=4))
        path = record(tmp_path / str(step), recorded[0], wrong, recorded[2])
        (found,) = report(path)["divergences"]
        assert (found["step"], found["odd"], found["tensor"]) == (step, [1], "fc.bias")
        assert found["ulp"] == 4
    zero = changed(recorded[0], from_step(8, "weights", "fc.bias"))
    (found,) = report(record(tmp_path / "zero", zero, *recorded[1:]))["divergences"]
    assert (found["step"], found["odd"]) == (8, [0])
