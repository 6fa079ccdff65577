"""The spool: Cirron's trace format on disk, written, read, verified and summed up."""

from .check import Problem, check_batch
from .eviction import Drops
from .findings import Finding, Severity
from .paths import SpoolPaths, file_name, find_spool, parse_name, target_spool
from .reader import MAX_BATCH_BYTES, BatchFile, SpoolReader, read_batch
from .summary import SessionSummary, SpoolSummary, summarise
from .tree import Forest, Limits, MarkNode, TreeNode, build_trees
from .validate import validate_batch
from .verify import verify_spool
from .writer import DEFAULT_MAX_BYTES, SpoolWriter, Written, name_of

__all__ = [
    "DEFAULT_MAX_BYTES",
    "MAX_BATCH_BYTES",
    "BatchFile",
    "Drops",
    "Finding",
    "Forest",
    "Limits",
    "MarkNode",
    "Problem",
    "SessionSummary",
    "Severity",
    "SpoolPaths",
    "SpoolReader",
    "SpoolSummary",
    "SpoolWriter",
    "TreeNode",
    "Written",
    "build_trees",
    "check_batch",
    "file_name",
    "find_spool",
    "name_of",
    "parse_name",
    "read_batch",
    "summarise",
    "target_spool",
    "validate_batch",
    "verify_spool",
]
