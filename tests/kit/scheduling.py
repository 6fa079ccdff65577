"""The distribution of tests to the workers of pytest-xdist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadGroupScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController


class GroupScheduling(LoadGroupScheduling):
    """`--dist loadgroup` that forgets the groups of which all tests are done.

    After each test, pytest-xdist counts the pending tests among all that it has given to the
    worker. With 17,000 tests, these counts take a minute if it keeps the done ones.
    """

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        """Record that a worker has done a test, and give it further tests if it needs some."""
        super().mark_test_complete(node, item_index, duration)
        test = self.registered_collections[node][item_index]
        groups, group = self.assigned_work[node], self._split_scope(test)
        if all(groups[group].values()):
            del groups[group]
