"""Opens the figures of a run whose records are in an engine."""

from __future__ import annotations

from ...engines.source import OpenedRun
from ..accounts import BY_RULE, AccountNames
from ..files import RunFiles
from ..relations import Texts
from ..run import Run
from .recording import EngineRecording


def engine_run(opened: OpenedRun, slowest: int = 10, accounts: AccountNames = BY_RULE) -> Run:
    """Return the figures of a run in an engine; `slowest` is the number of slowest units.

    `accounts` has the accounts of scopes by their names.

    Its methods raise InputError if the engine cannot read the run, and TargetError if there is no
    disk space.
    """
    files = RunFiles(
        opened.paths, opened.batches, opened.is_complete, opened.files.may_have_drops,
        opened.unreadable,
    )  # fmt: skip
    return Run(EngineRecording(opened, Texts()), files, slowest, accounts)
