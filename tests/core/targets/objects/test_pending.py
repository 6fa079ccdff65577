"""The list of pending uploads, with two users of one file: a reload replaces a sender in use."""

from __future__ import annotations

import time
from pathlib import Path

from cirron_otel.core.spool.blobs import BlobKey
from cirron_otel.core.targets.objects.pending import PendingUploads

KEYS = [BlobKey(f"{number:032x}", "weights.safetensors") for number in (1, 2)]


def test_an_upload_that_a_predecessor_finishes_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "uploads.sqlite"
    earlier = PendingUploads(path, time.monotonic)
    earlier.add([("1-batch.json", KEYS)])
    later = PendingUploads(path, time.monotonic)
    finished = earlier.next(files=True, rows=True)
    assert finished is not None
    earlier.remove(finished)
    found = later.next(files=True, rows=True)
    assert found is not None
    assert {finished.key, found.key} == {*KEYS}
    later.remove(found)
    assert later.next(files=True, rows=True) is None
    assert len(later) == 0
    earlier.close()
    later.close()
