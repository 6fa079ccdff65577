"""The rank of this process, as assigned by torch.distributed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ...session.errors import record_error


class Ranks:
    """Polls torch.distributed for the rank until there is a default process group.

    Programs that start their processes themselves, for example with torch.multiprocessing.spawn,
    set no variable: the rank is an argument of `init_process_group`. That function is not replaced,
    because other libraries call it under their own names.
    """

    def __init__(self, callback: Callable[[int, int], None]) -> None:
        """`callback` is called once, with the rank and the number of processes."""
        self._callback = callback
        self._is_known = False

    def poll(self) -> None:
        """Poll once. Raises nothing. May be called from any thread, and more than once."""
        if self._is_known:
            return
        try:
            distributed: Any = sys.modules.get("torch.distributed")
            if distributed is None or not distributed.is_available():
                return
            if distributed.is_initialized():
                self._is_known = True
                self._callback(int(distributed.get_rank()), int(distributed.get_world_size()))
        except Exception as error:
            record_error("rank", error)
