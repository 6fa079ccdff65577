"""Writing past the page cache: for what is synced at once and hardly read again here.

A copy in the page cache costs the copying and, where memory is not there yet (a virtual machine),
the faults of every page; it takes the room of what others read (a training job its data), and the
sync has to write it all the same. Direct I/O (open(2), "O_DIRECT") writes whole blocks from aligned
memory. A file system that cannot do it is written through the page cache, whenever it says so.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os

BLOCK = 4096
"""Bytes; what direct I/O is aligned to: no common device has larger logical blocks."""
BUFFER = 1024 * 1024
DIRECT = getattr(os, "O_DIRECT", 0)
"""0 where the system has none."""

_WORTH_IT = 1024 * 1024
"""Bytes. What is much smaller waits longer for the device than its copy costs."""
_CANNOT = frozenset({errno.EINVAL, errno.EOPNOTSUPP})


def write_all(descriptor: int, data: bytes, *, is_synced: bool) -> None:
    """Write `data` into the file, which is empty. Raises OSError.

    What is not synced behind that stays in the page cache, large or not.
    """
    view = memoryview(data)
    is_direct = is_synced and DIRECT and len(data) >= _WORTH_IT
    at = _write_blocks(descriptor, view) if is_direct else 0
    while at < len(view):
        at += os.pwrite(descriptor, view[at:], at)


def _write_blocks(descriptor: int, data: memoryview) -> int:
    """Write the whole blocks of `data` past the page cache; how many bytes were written so."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | DIRECT)
    except OSError:
        return 0  # the file system has no such thing
    at, end = 0, len(data) // BLOCK * BLOCK
    try:
        # Anonymous memory begins with a page. It goes with the last that holds on to it: closing
        # it would fail, and hide the error, where that is an error's traceback.
        buffer = mmap.mmap(-1, BUFFER)
        while at < end:
            size = min(end - at, BUFFER)
            buffer[:size] = data[at : at + size]
            at += write_whole(descriptor, memoryview(buffer)[:size], at)
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return at


def write_whole(descriptor: int, view: memoryview, at: int) -> int:
    """Write all of `view`, aligned, at `at` of the file; its size. Raises OSError."""
    written = 0
    while written < len(view):
        written += _write_some(descriptor, view[written:], at + written)
    return written


def _write_some(descriptor: int, view: memoryview, at: int) -> int:
    try:
        return os.pwrite(descriptor, view, at)
    except OSError as error:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        if error.errno not in _CANNOT or not flags & DIRECT:
            raise
        # Larger blocks than ours, or a file system that says so only now.
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~DIRECT)
        return os.pwrite(descriptor, view, at)
