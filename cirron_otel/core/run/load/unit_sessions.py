"""The session of each unit, by the scope around it and the process that recorded it."""

from __future__ import annotations

import numpy as np

from ..relations import ABSENT, Block, Texts
from .tree import SessionMembers


def sessions_of_units(members: SessionMembers, texts: Texts, units: Block) -> np.ndarray:
    """Return the number of the session of each unit; -1 for one without a session."""

    def number_of(parent: int, pid: int) -> int:
        session = members.of_units((texts.text(parent), None if pid == ABSENT else pid))
        return -1 if session is None else session

    keys = np.stack([units["parent"], units["pid"]], axis=1)
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    found = np.array([number_of(parent, pid) for parent, pid in distinct.tolist()], np.int64)
    return found[which.reshape(-1)]
