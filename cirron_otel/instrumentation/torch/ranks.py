"""The rank of this process, as torch.distributed has it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ...sdk.errors import record_error


class Ranks:
    """Asks for the rank of the default process group until there is one.

    Programs that start their processes themselves, as with torch.multiprocessing.spawn, set no
    variable: the rank is an argument of `init_process_group`. It is asked for, instead of replacing
    that function, because other libraries call it too, under names of their own.
    """

    def __init__(self, found: Callable[[int, int], None]) -> None:
        """`found` is given the rank and the number of processes, once."""
        self._found = found
        self._is_known = False

    def look(self) -> None:
        """Ask once. Raises nothing; from any thread, for it is cheap and may come twice."""
        if self._is_known:
            return
        try:
            distributed: Any = sys.modules.get("torch.distributed")
            if distributed is None or not distributed.is_available():
                return
            if distributed.is_initialized():
                self._is_known = True
                self._found(int(distributed.get_rank()), int(distributed.get_world_size()))
        except Exception as error:
            record_error("rank", error)
