"""The epochs of the scopes of an index."""

from __future__ import annotations

from typing import Final

from .index import SpoolIndex

_EPOCHS: Final = """
CREATE TABLE {table} (parent BLOB PRIMARY KEY, epoch TEXT);
INSERT OR IGNORE INTO {table}
WITH RECURSIVE above (parent, id, level) AS (
    SELECT parent, parent, 0 FROM ({parents}) WHERE parent IS NOT NULL
    UNION ALL
    SELECT above.parent, span.parent, level + 1 FROM above JOIN span ON span.id = above.id
    WHERE span.name IS NOT 'epoch' AND span.parent IS NOT NULL AND level < 64
)
SELECT above.parent, span.idx FROM above JOIN span ON span.id = above.id
WHERE span.name = 'epoch' ORDER BY level;
"""


def create_epoch_table(index: SpoolIndex, table: str, parents: str) -> None:
    """Create a table (parent, epoch) with the number of the epoch that is, or contains, a parent.

    `parents` is a query for the distinct ids of scopes, in a column `parent`. A parent that no
    epoch contains has no row.
    """
    index.script(_EPOCHS.format(table=table, parents=parents))
