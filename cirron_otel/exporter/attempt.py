"""One attempt to send batches or a snapshot file, and its effect on those that wait."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..spool.blobs import BlobKey
from .backlog import Backlog
from .batch_target import BlobSink, Receipt, SealedBatch, Sender
from .errors import RefusedError, StoppedError
from .failures import Failure, kind_of
from .schedule import Schedule

_ABOUT_THE_REQUEST = (Failure.SERVER_FAULT, Failure.FINAL, Failure.UNAUTHORIZED)


class Result(NamedTuple):
    """The result of an attempt. If all fields are None, its batches are tried one by one next."""

    receipt: Receipt | None = None
    """The target has the batches."""
    refusal: Exception | None = None
    """The only batch of the attempt is refused for good, or given up."""
    failure: Exception | None = None
    """The batches are tried again when the schedule allows it."""


class UploadResult(NamedTuple):
    """The result of an attempt to send a snapshot file."""

    is_done: bool
    """Whether the file needs no further attempt."""
    refusal: Exception | None = None
    """The file is gone, or the target will never take it."""
    failure: Exception | None = None
    """The file is tried again when the schedule allows it."""
    is_missing: bool = False
    """The file is not in the spool yet, and another client may still send it."""


def attempt(
    target: Sender, schedule: Schedule, backlog: Backlog, group: list[SealedBatch]
) -> Result:
    """Send a group that `backlog.group` returned.

    Batches that are to be tried again are put back into the backlog. The caller notes there the
    batches that the target accepted or refused. Raises StoppedError.
    """
    lane, names = backlog.lane(group), [batch.name for batch in group]
    try:
        receipt = target.send(group)
    except RefusedError as error:
        schedule.answered(lane, ())
        if len(group) == 1:
            return Result(refusal=error)
        backlog.put_back(group, singly=True)
        return Result()
    except Exception as error:
        if isinstance(error, StoppedError):
            backlog.put_back(group)
            raise
        if _splits(schedule, lane, group, error):
            backlog.put_back(group, singly=True)
            return Result()
        if schedule.failed(lane, names, error):
            return Result(refusal=error)
        backlog.put_back(group)
        return Result(failure=error)
    except BaseException:
        backlog.put_back(group)
        raise
    schedule.passed(lane, names)
    return Result(receipt=receipt)


def attempt_upload(sink: BlobSink, snapshots: Path, key: BlobKey) -> UploadResult:
    """Send the next part of the file `key` below `snapshots`. Raises StoppedError."""
    try:
        return UploadResult(sink.upload(snapshots, key))
    except (FileNotFoundError, RefusedError) as error:
        if sink.awaits_files and isinstance(error, FileNotFoundError):
            return UploadResult(is_done=False, is_missing=True)
        return UploadResult(is_done=True, refusal=error)
    except StoppedError:
        raise
    except Exception as error:  # other files and batches go on
        return UploadResult(is_done=False, failure=error)


def _splits(schedule: Schedule, lane: str, group: Sequence[SealedBatch], error: Exception) -> bool:
    """Whether to send the batches of a failed group one by one, to find the one that fails."""
    if len(group) == 1 or schedule.has_failed(lane):
        return False
    return kind_of(error) in _ABOUT_THE_REQUEST
