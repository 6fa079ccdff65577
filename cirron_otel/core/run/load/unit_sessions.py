"""The session of each unit, by the scope around it and the process that recorded it."""

from __future__ import annotations

from itertools import starmap

import numpy as np

from ..relations import ABSENT, Block, Texts
from .tree import SessionMembers


def sessions_of_units(members: SessionMembers, texts: Texts, units: Block) -> np.ndarray:
    """Return the number of the session of each unit; -1 for one without a session."""

    def number_of(parent: int, pid: int) -> int:
        session = members.of_units((texts.text(parent), None if pid == ABSENT else pid))
        return -1 if session is None else session

    parent, pid = units["parent"], units["pid"]
    firsts = np.flatnonzero(
        np.r_[len(parent) > 0, (parent[1:] != parent[:-1]) | (pid[1:] != pid[:-1])]
    )
    found = list(
        starmap(number_of, zip(parent[firsts].tolist(), pid[firsts].tolist(), strict=True))
    )
    return np.repeat(np.array(found, np.int64), np.diff([*firsts, len(parent)]))
