"""Samples taken in scopes that may be discarded later: no mark is lost, or without its span."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import cirron_otel as ci
from cirron_otel.core.analysis.verify import verify_spool
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.sdk.flush.undecided import HELD_NS
from cirron_otel.sdk.tracing.buffers import local
from cirron_otel.sdk.tracing.clock import now, wall
from cirron_otel.sdk.tracing.mark import POINT, SampleAttributes
from cirron_otel.sdk.tracing.phase import LoaderPassSpan, Phase, Step, begin
from cirron_otel.sdk.tracing.state import CONTEXT, state
from tests.conftest import need_torch
from tests.kit.forked_scripts import ForkedScripts
from tests.kit.sessions.spool_trees import read_spool

PROGRAM = Path(__file__).parent / "programs" / "slow_end.py"


@pytest.mark.torch
@pytest.mark.parametrize("words", [(), ("every",)])
def test_a_loader_that_ends_slowly(
    tmp_path: Path, words: tuple[str, ...], scripts: ForkedScripts
) -> None:
    """Its last fetch and the step begun for it are discarded, and flushes came in between."""
    need_torch()
    done = scripts.script(PROGRAM, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["marks_without_value_or_scope"] == 0
    spool = read_spool(tmp_path)
    spans = {span["id"]: span for span in spool.spans}
    marks = [mark for mark in spool.marks if mark["name"] == "memory"]
    assert [mark for mark in marks if mark["span_id"] not in spans] == []
    for mark in marks:
        assert mark["id"] in spans[mark["span_id"]]["mark_ids"]
    assert list(verify_spool(SpoolReader(tmp_path))) == []
    names = [spans[mark["span_id"]]["name"] for mark in marks]
    assert names.count("epoch") > 10  # the slow ends
    if not words:
        assert names.count("data_load") > 10  # the pauses before batches


class TestUndecided:
    """Scopes that an instrumentation has opened and may discard."""

    @pytest.fixture(autouse=True)
    def session(self, tmp_path: Path) -> Iterator[None]:
        ci.profile(
            output_dir=tmp_path, exporters="none", join="none", handle_signals=False,
            frameworks=[], sample_interval=None, flush_interval=600,
        )  # fmt: skip
        local.b.are_samples = True
        yield
        local.b.are_samples = False
        ci.shutdown()

    def open(self, kind: type[Phase], name: str, above: object) -> Phase:
        scope = kind.__new__(kind)
        for field in ("_ends", "_collected", "_folded", "_is_detailed", "_is_known", "_rest"):
            if hasattr(kind, field):
                setattr(scope, field, None)
        begin(scope, name, None, None, above, CONTEXT.get(), now(), is_fixed=True)
        return scope

    def sample(self, scope: Phase, name: str, age_ns: int = 0) -> None:
        at = max(now() - age_ns, scope._start)
        local.b.marks.append((scope, name, 1, at, POINT, SampleAttributes()))

    def close(self, scope: Phase, *, is_dropped: bool = False) -> None:
        if is_dropped:
            scope.drop()
        scope._until = scope._start if is_dropped else now()
        scope.finish()

    def found(self, directory: Path) -> dict[str, str]:
        """Return the name of the span of each mark, by the mark's name; check the lists of ids."""
        ci.flush()
        spool = read_spool(directory)
        names = {span["id"]: span["name"] for span in spool.spans}
        names.setdefault(state.session.id, "session")
        listed = {each for span in spool.spans for each in span["mark_ids"]}
        for mark in spool.marks:
            if mark["span_id"] in names and names[mark["span_id"]] != "session":
                assert mark["id"] in listed
        return {
            mark["name"]: names.get(mark["span_id"], "?")
            for mark in spool.marks
            if mark["name"] != "cirron.overhead_ns"
        }

    @pytest.mark.parametrize("is_dropped", [False, True])
    @pytest.mark.parametrize(
        ("kind", "name"),
        [(Step, "step"), (Phase, "data_load"), (LoaderPassSpan, "epoch")],
    )
    def test_marks_wait_until_it_is_certain_that_the_scope_remains(
        self, kind: type[Phase], name: str, is_dropped: bool, tmp_path: Path
    ) -> None:
        scope = self.open(kind, name, state.session)
        self.sample(scope, "early")
        assert self.found(tmp_path) == {}
        self.sample(scope, "late")
        self.close(scope, is_dropped=is_dropped)
        name = "session" if is_dropped else name
        assert self.found(tmp_path) == {"early": name, "late": name}
        times = [mark["ts_ns"] for mark in read_spool(tmp_path).marks]
        assert len(set(times)) == len(times)
        assert min(times) > wall(scope._start)

    def test_marks_of_other_scopes_do_not_wait(self, tmp_path: Path) -> None:
        load = self.open(Phase, "data_load", state.session)
        self.sample(load, "load")
        forward = self.open(Phase, "forward", state.session)
        self.sample(forward, "forward")
        assert set(self.found(tmp_path)) == {"forward"}
        self.close(forward)
        self.close(load)
        assert self.found(tmp_path) == {"forward": "forward", "load": "data_load"}

    def test_a_known_step_and_a_pass_with_a_phase_do_not_wait(self, tmp_path: Path) -> None:
        epoch = self.open(LoaderPassSpan, "epoch", state.session)
        step = self.open(Step, "step", epoch)
        self.sample(epoch, "first")
        self.sample(step, "step")
        assert self.found(tmp_path) == {}
        step._is_known = True  # type: ignore[attr-defined]
        assert set(self.found(tmp_path)) == {"step"}
        self.close(step)
        assert set(self.found(tmp_path)) == {"step", "first"}
        self.sample(epoch, "second")
        assert set(self.found(tmp_path)) == {"step", "first", "second"}
        self.close(epoch)
        assert self.found(tmp_path) == {"step": "step", "first": "epoch", "second": "epoch"}

    def test_after_ten_seconds_a_mark_moves_to_a_scope_that_remains(self, tmp_path: Path) -> None:
        epoch = self.open(LoaderPassSpan, "epoch", state.session)
        step = self.open(Step, "step", epoch)
        step._is_known = True  # type: ignore[attr-defined]
        load = self.open(Phase, "data_load", step)
        for scope in (epoch, step, load):
            scope._start -= 2 * HELD_NS
        self.sample(load, "in_step", HELD_NS)
        self.sample(epoch, "in_epoch", HELD_NS)
        self.sample(load, "fresh")
        assert set(self.found(tmp_path)) == {"in_step", "in_epoch"}
        for scope in (load, step, epoch):
            self.close(scope, is_dropped=scope is not step)
        expected = {"in_step": "step", "in_epoch": "session", "fresh": "step"}
        assert self.found(tmp_path) == expected

    def test_marks_wait_even_after_the_thread_that_created_them_has_ended(
        self, tmp_path: Path
    ) -> None:
        """The last samples of the session: its flush may be another one than the last."""
        load = self.open(Phase, "data_load", state.session)

        def work() -> None:
            local.b.are_samples = True
            self.sample(load, "load")

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        del thread
        local.b.are_samples = False
        assert self.found(tmp_path) == {}
        assert self.found(tmp_path) == {}
        ci.shutdown()
        assert self.found(tmp_path) == {"load": "data_load"}

    def test_the_end_of_the_session_waits_for_none(self, tmp_path: Path) -> None:
        load = self.open(Phase, "data_load", state.session)
        self.sample(load, "load")
        ci.shutdown()
        assert self.found(tmp_path)["load"] == "data_load"
        assert list(verify_spool(SpoolReader(tmp_path))) == []
