"""Copy the batches of a storage into a spool, from which they can be converted."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ....errors import RefusedNameError
from ...spool.directories import make_private
from ...spool.paths import BATCH_SUFFIX
from ...spool.writer import SpoolWriter
from .rows import hash_of
from .store import Select, open_store

_SHOWN_DIGITS = 8


@dataclass(slots=True)
class SpoolCopy:
    """The result of `copy_to_spool`."""

    batches: int = 0
    bytes: int = 0
    renamed: list[tuple[str, str]] = field(default_factory=list)
    """(name, name in the spool) of each batch that was renamed because another batch has its name.
    """


def copy_to_spool(
    url: str, directory: str | os.PathLike[str], select: Select | None = None
) -> SpoolCopy:
    """Write the batches of a storage into the spool at `directory`, with their file names.

    If several batches have the same name, the batch that was stored first keeps it, and eight
    digits of the hash are added to the other batches' names. Raises UsageError for an invalid URL,
    InputError if there is no storage or a batch is damaged, EndpointError if the database cannot be
    read, and TargetError if the spool cannot be written.
    """
    copy = SpoolCopy()
    writer = SpoolWriter(directory, max_bytes=None, durable=False)
    with open_store(url, create=False) as storage:
        for name, data in storage.batches(select or Select()):
            try:
                writer.write(data, name)
            except RefusedNameError:
                digits = hash_of(data).hex()[:_SHOWN_DIGITS]
                other = f"{name.removesuffix(BATCH_SUFFIX)}.{digits}{BATCH_SUFFIX}"
                writer.write(data, other)
                copy.renamed.append((name, other))
            copy.batches += 1
            copy.bytes += len(data)
    make_private(writer.paths.spool)  # even if there are no batches
    return copy
