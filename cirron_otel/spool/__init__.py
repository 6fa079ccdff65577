"""The spool: Cirron's trace format on disk, with its writer and its reader."""

from .paths import SpoolPaths, file_name, find_spool, parse_name, target_spool
from .reader import MAX_BATCH_BYTES, BatchFile, SpoolReader, read_batch
from .writer import DEFAULT_MAX_BYTES, SpoolWriter, Written, name_of

__all__ = [
    "DEFAULT_MAX_BYTES",
    "MAX_BATCH_BYTES",
    "BatchFile",
    "SpoolPaths",
    "SpoolReader",
    "SpoolWriter",
    "Written",
    "file_name",
    "find_spool",
    "name_of",
    "parse_name",
    "read_batch",
    "target_spool",
]
