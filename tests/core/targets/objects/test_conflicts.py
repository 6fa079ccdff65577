"""An answer 409 or 412 is no object: it counts as stored only if it is there and equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from cirron_otel.core.delivery.errors import MisconfiguredError, UnreachableError
from cirron_otel.core.targets.objects import DifferentError, open_store
from cirron_otel.core.targets.objects.s3 import PART_BYTES

from .conflicts import ConflictingS3, conflicting
from .made import noise, put, written

SIZES = {"whole": 5, "parts": PART_BYTES + 5}


def _leads_to(server: ConflictingS3, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)


def _put_until_answered(server: ConflictingS3, path: Path) -> tuple[bool, int]:
    """Whether it was new, and how many tries failed before."""
    store = open_store("s3://bucket/prefix")
    failed = 0
    while True:
        try:
            return put(store, "a/b", path), failed
        except MisconfiguredError:
            raise
        except UnreachableError:
            failed += 1


@pytest.mark.parametrize("missing", [404, 403])
@pytest.mark.parametrize("code", [409, 412])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_a_conflict_without_an_object_is_tried_again(
    size: int, code: int, missing: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = written(tmp_path / "file", noise(size))
    # More conflicts than the library's own second try of a request takes.
    with conflicting(code, 4, missing) as server:
        _leads_to(server, monkeypatch)
        is_new, failed = _put_until_answered(server, path)
        assert is_new
        assert failed
        assert [body for body, _ in server.objects.values()] == [path.read_bytes()]
        assert _put_until_answered(server, path) == (False, 0)


@pytest.mark.parametrize("code", [409, 412])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_conflicting_put_succeeds_only_if_the_stored_object_is_equal(
    size: int, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = written(tmp_path / "file", noise(size))
    other = written(tmp_path / "other", noise(size + 1))
    with conflicting(code, 0) as server:
        _leads_to(server, monkeypatch)
        for theirs in (path, other):
            server.conflicts = 0
            server.arriving = {}
            _put_until_answered(server, theirs)
            server.arriving, server.objects = server.objects, {}
            server.conflicts = 100
            if theirs is path:
                assert not _put_until_answered(server, path)[0]
            else:
                with pytest.raises(DifferentError):
                    _put_until_answered(server, path)
            assert server.objects == server.arriving
            server.objects = {}
