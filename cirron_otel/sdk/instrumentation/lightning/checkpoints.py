"""Lightning's checkpoints: the attributes of their scopes, and the sessions that wrote them.

A checkpoint is a file or, with sharded states, a directory. The session that wrote it is stored in
the directory that contains it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..checkpoint_origin import link_origin, store_origin


def store_writer(path: object, trainer: Any) -> None:
    """Store this session beside a checkpoint that the first rank of a Trainer has saved."""
    directory = _directory(path)
    if trainer.is_global_zero and directory is not None:
        store_origin(directory)


def link_writer(path: object) -> None:
    """Link this session to the one that wrote a checkpoint."""
    directory = _directory(path)
    if directory is not None:
        link_origin(directory)


def _directory(path: object) -> Path | None:
    """Return the local directory that contains a checkpoint."""
    if isinstance(path, (str, os.PathLike)) and "://" not in os.fspath(path):
        return Path(path).absolute().parent
    return None
