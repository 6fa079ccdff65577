"""SQL storage: the platform's tables in SQLite or PostgreSQL (docs/storage.md)."""

from __future__ import annotations

from .source import SpoolCopy, copy_to_spool
from .storage import Retained, Storage, Written
from .stored import Select
from .target import StorageTarget
from .url import is_storage_url
from .whose import Context

__all__ = [
    "Context",
    "Retained",
    "Select",
    "SpoolCopy",
    "Storage",
    "StorageTarget",
    "Written",
    "copy_to_spool",
    "is_storage_url",
]
