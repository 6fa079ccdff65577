"""The rows of a recording's tables."""

# ruff: noqa: PLC0415 - imports in functions, so that only tables import pyarrow and numpy

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...core.analysis.runs import SpoolRuns
from ...core.analysis.session_columns import SESSION_COLUMNS, session_rows
from ...core.analysis.summary import with_processes
from ...core.records.problems import ReadingProblem
from ...core.records.rows import shown
from ...core.spool.reader import SpoolReader

if TYPE_CHECKING:
    import pyarrow as pa

    from ...core.analysis.metrics import LossMetric
    from ...core.analysis.runs import Run
    from ...core.run.load.scopes import Scopes
    from ...core.run.step_table import StepTable


class RecordingContent:
    """Reads the tables of a spool."""

    def __init__(
        self, reader: SpoolReader, runs: SpoolRuns, findings: list[ReadingProblem], shown: str
    ) -> None:
        """`runs` are those of the reader's batches; problems of `shown` are added to `findings`."""
        self.runs, self.findings, self._shown = runs, findings, shown
        self._reader = reader
        self._run_of = {name: run for run in runs.runs for name in run.batches}

    def steps(self) -> pa.Table:
        """Return the steps."""
        from .arrow_rows import table_of

        with self.step_table() as steps:
            return table_of(steps.columns, steps.rows())

    @contextlib.contextmanager
    def step_table(self) -> Iterator[StepTable]:
        """Open the steps, row by row."""
        from ...core.run.opening import open_run
        from ...core.run.step_table import StepTable

        runs = {shown(name) or "": run.id for name, run in self._run_of.items()}
        with open_run(self._reader, self._reader) as run:
            steps = StepTable(run.recording, runs)
            if steps.left_out:
                what = f"{steps.left_out} phases and names of marks have no column in the steps"
                self.findings.append(ReadingProblem(self._shown, "left-out", what))
            if steps.without_duration:
                what = f"steps with damaged times, which have no row: {steps.without_duration}"
                self.findings.append(ReadingProblem(self._shown, "left-out", what))
            yield steps

    def run_rows(self) -> pa.Table:
        """Return the runs, with their losses."""
        from ...core.analysis.run_losses import shared_losses
        from .arrow_rows import table_of
        from .run_rows import RunRows

        listed = self.runs.runs
        rows = RunRows(listed, shared_losses({run.id: self._losses(run) for run in listed}))
        return table_of(rows.columns, rows.rows())

    def _losses(self, run: Run) -> list[LossMetric]:
        from ...core.analysis.metrics import losses
        from ...core.run.opening import open_run

        only = run.batches if self._reader.only is None else run.batches & self._reader.only
        reader = SpoolReader(self._reader.paths.root, only=only)
        with open_run(reader, reader) as opened:
            return losses(opened.marks[0])

    def sessions(self) -> pa.Table:
        """Return the sessions."""
        from .arrow_rows import table_of

        scopes = self._scopes()
        files = scopes.first_files()
        run_of = {shown(name): run for name, run in self._run_of.items()}
        runs = {session: run_of.get(name) for session, name in files.items()}
        is_complete = self._reader.only is None
        sessions = with_processes(scopes.summaries(), self._reader.paths, adds=is_complete)
        return table_of(SESSION_COLUMNS, session_rows(sessions, runs, self.runs))

    def records(self, name: str) -> pa.Table:
        """Return the rows of a table of docs/columns.md.

        Records that do not name their run or their session, such as those of cirron-sdk, have the
        run and the session that the other tables list.
        """
        from .arrow_rows import table_of_records

        sessions = self._sessions_of_spans()
        run_of_session = {each: run for run in self.runs.runs for each in run.sessions}

        def owner(batch: str, span: str | None) -> tuple[str | None, str | None]:
            session = sessions.get(span)
            # A batch may contain marks of several sessions.
            run = self._run_of.get(batch) if session is None else run_of_session.get(session)
            return None if run is None else run.id, session

        return table_of_records(name, self._reader, self.findings.append, owner)

    def _sessions_of_spans(self) -> dict[str | None, str]:
        """Return the session of each span by its id; nothing if all batches name their session."""
        if all(run.is_recorded for run in self.runs.runs):
            return {}
        return self._scopes().sessions_of_ids()

    def _scopes(self) -> Scopes:
        from ...core.run.load.scopes import Scopes

        return Scopes(self._reader, once=True)
