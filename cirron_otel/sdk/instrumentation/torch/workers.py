"""Trace the workers of a DataLoader: each has its own session, with `fetch` and `collate`.

Torch's worker loop is replaced by an object that opens the session and then calls the original
loop. A spawned process receives the same object, so the program does not have to change.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from ...session.errors import record_error
from ...tracing.hidden_frames import hidden, strip
from ...tracing.scope import Scope
from ..patches import Patches

FETCH, COLLATE = "fetch", "collate"
NAME = "_worker_loop"
TORCHDATA = "torchdata.stateful_dataloader.stateful_dataloader"

End = Callable[[], object]
Open = Callable[[int], End]
"""Opens the session of the worker with the given id, and returns the function that ends it.

It can be pickled.
"""


class Workers:
    """Replaces the worker loops of torch and of torchdata."""

    def __init__(self, opening: Callable[[], Open], leave: Callable[[], None]) -> None:
        """`opening` returns an `Open`; `leave` removes the parent's hooks in a child process."""
        self._opening, self._leave = opening, leave

    def install(self, patches: Patches) -> None:
        """Replace torch's loop. Raises AttributeError or ValueError if torch is not as expected."""
        from torch.utils.data._utils import worker  # noqa: PLC0415

        self.replace(patches, worker)

    def replace(self, patches: Patches, module: Any) -> None:
        """Replace the worker loop that `module` runs in its processes.

        Raises the same errors as `install`.
        """
        original = getattr(module, NAME)
        at = list(inspect.signature(original).parameters).index("worker_id")
        loop = WorkerLoop(module.__name__, at, self._opening, self._leave, original)
        patches.replace(module, NAME, loop)


class WorkerLoop:
    """A replacement for torch's worker loop, which runs the loop in a session."""

    def __init__(
        self,
        module: str,
        at: int,
        opening: Callable[[], Open],
        leave: Callable[[], None],
        original: Callable[..., None] | None = None,
    ) -> None:
        """`at` is the position of the worker's id among the loop's arguments."""
        self._module, self._at, self._opening, self._leave = module, at, opening, leave
        self._original = original

    def __reduce__(self) -> Any:
        """Pickle for a spawned process, which looks up the original loop by name."""
        return spawned, (self._module, self._at, self._opening())

    @hidden
    def __call__(self, *args: Any) -> None:
        """Run torch's loop in a session."""
        try:
            original = self._original or getattr(importlib.import_module(self._module), NAME)
            end = self._begin(args)
            try:
                original(*args)
            finally:
                end()
        except BaseException as error:
            strip(error)
            raise

    def _begin(self, args: tuple[Any, ...]) -> End:
        try:
            worker = int(args[self._at])
            self._leave()
            end = self._opening()(worker)
            watch_fetches(worker)
        except Exception as error:
            record_error("worker", error)
            return _nothing
        return end


def spawned(module: str, at: int, opened: Open) -> WorkerLoop:
    """Return the loop for a spawned process."""
    return WorkerLoop(module, at, lambda: opened, _nothing)


def watch_fetches(worker: int) -> None:
    """Record every batch that this process fetches from now on.

    Raises AttributeError if torch is not as expected.
    """
    from torch.utils.data._utils import fetch  # noqa: PLC0415

    fetches = Fetches(worker)
    for owner in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        owner.fetch = fetches.wrap(owner.fetch)


class Fetches:
    """Records the fetches of one worker."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._count = 0

    @hidden
    def wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that fetches a batch in a scope."""

        def fetch(fetcher: Any, index: Any) -> Any:
            try:
                collate_fn = fetcher.collate_fn
                scope = Scope(FETCH, self._count, worker=self._worker)
                self._count += 1
                scope.__enter__()
                try:
                    fetcher.collate_fn = Scope(COLLATE)(collate_fn)
                    batch = original(fetcher, index)
                except StopIteration:
                    self._count -= 1
                    scope.drop()  # the dataset was exhausted
                    scope.__exit__(None, None, None)
                    raise
                except BaseException as error:
                    scope.__exit__(type(error), error, error.__traceback__)
                    raise
                finally:
                    fetcher.collate_fn = collate_fn
                scope.__exit__(None, None, None)
                return batch
            except BaseException as error:
                strip(error)
                raise

        return fetch


def _nothing() -> None:
    pass
