"""What a real S3 server says no to, in words, and without a secret in them."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cirron_otel.core.delivery.errors import MisconfiguredError, UnreachableError
from cirron_otel.core.targets.objects import open_store
from cirron_otel.core.targets.objects.place import parse_place
from cirron_otel.core.targets.objects.s3 import PART_BYTES
from cirron_otel.errors import MissingExtraError, UsageError
from tests.kit.backends.process import free_endpoints
from tests.kit.backends.versitygw import (
    ACCESS,
    SECRET,
    Versitygw,
    versitygw,
)

from .conftest import BUCKET
from .made import noise, put, written

pytestmark = pytest.mark.backends

WRONG = {
    "secret": ({"AWS_SECRET_ACCESS_KEY": "wr0ng/secret"}, MisconfiguredError,
               "the secret key is wrong: check AWS_SECRET_ACCESS_KEY"),
    "access key": ({"AWS_ACCESS_KEY_ID": "nobody"}, MisconfiguredError,
                   "the access key is unknown: check AWS_ACCESS_KEY_ID"),
    "region": ({"AWS_REGION": "us-east-1"}, MisconfiguredError,
               "the region is wrong: check AWS_REGION"),
    "endpoint": ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, UnreachableError,
                 "cannot be reached: the connection was refused; check AWS_ENDPOINT_URL"),
    "tls": ({"AWS_ENDPOINT_URL": "https"}, UnreachableError, "cannot be reached"),
}  # fmt: skip


@pytest.mark.parametrize("size", [5, PART_BYTES + 5], ids=["whole", "parts"])
@pytest.mark.parametrize("what", WRONG)
def test_s3_errors_are_described_without_secrets(
    what: str,
    size: int,
    aws: Versitygw,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    variables, kind, words = WRONG[what]
    for name, value in variables.items():
        monkeypatch.setenv(name, aws.endpoint.replace("http", value) if what == "tls" else value)
    store = open_store(f"s3://{BUCKET}/wrong")
    with pytest.raises(kind) as caught:
        put(store, "a/b", written(tmp_path / "file", noise(size)))
    told = str(caught.value)
    assert words in told
    assert told.startswith(f"s3://{BUCKET}/wrong cannot be")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    for secret in (SECRET, ACCESS, "wr0ng", "nobody", "Signature", "StringToSign"):
        if secret != "nobody" or what == "access key":
            assert secret not in told
            assert secret not in caplog.text


def test_a_bucket_that_is_not_there(aws: Versitygw, tmp_path: Path) -> None:
    store = open_store("s3://nowhere/prefix")
    for size in (5, PART_BYTES + 5):
        with pytest.raises(MisconfiguredError, match="the bucket does not exist: create it"):
            put(store, "a", written(tmp_path / "file", noise(size)))


def test_without_credentials(
    aws: Versitygw, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of the machine are asked for, where there is a server for that: here nobody listens."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://{free_endpoints(1)[0]}")
    store = open_store(f"s3://{BUCKET}")
    with pytest.raises(UnreachableError) as caught:
        put(store, "a", written(tmp_path / "file", b"x"))
    assert "set AWS_ACCESS_KEY_ID" in str(caught.value)


def test_a_server_that_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [endpoint] = free_endpoints(1)
    path = written(tmp_path / "file", noise(PART_BYTES + 1))
    with versitygw(tmp_path, endpoint) as server:
        server.make_bucket("bucket")
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        store = open_store("s3://bucket")
        server.process.kill()
        with pytest.raises(UnreachableError, match="cannot be reached"):
            put(store, "a", path)
    with versitygw(tmp_path, endpoint):
        assert put(store, "a", path)
        assert not put(store, "a", path)
        assert b"".join(store.get("a")) == path.read_bytes()


PROGRAM = """
import sys
sys.modules["obstore"] = None
from cirron_otel.core.targets.objects import open_store
open_store("s3://bucket")
"""


def test_without_the_library(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert MissingExtraError("s3", "a store in S3").args[0] in done.stderr
    assert "pip install 'cirron-otel[s3]'" in done.stderr


def test_many_small_objects_take_little(aws: Versitygw, tmp_path: Path) -> None:
    """Two requests each at most: the figure is printed, and judged by nobody."""
    store = open_store(f"s3://{BUCKET}/{tmp_path.name}")
    path = written(tmp_path / "file", noise(20_000))
    begun = time.perf_counter()
    for number in range(100):
        assert put(store, f"{number}", path)
    print(f"{(time.perf_counter() - begun) * 10:.2f} ms an object")
    assert len([k for k in aws.objects(BUCKET) if k.startswith(tmp_path.name)]) == 100


PLACES = {
    "s3://bucket": "s3://bucket",
    "s3://bucket/": "s3://bucket",
    "s3://bucket/a/b/": "s3://bucket/a/b",
    "file:///a/b": "file:///a/b",
    "/a/b": "file:///a/b",
}


@pytest.mark.parametrize("url", PLACES)
def test_places(url: str) -> None:
    place = parse_place(url)
    assert place.shown == PLACES[url]
    assert place.uri("x/y") == f"{PLACES[url]}/x/y"
    assert place.key == parse_place(PLACES[url]).key


@pytest.mark.parametrize(
    "url",
    ["", "file://", "file://relative", "s3://", "s3://B", "s3://bu_/x", "http://x/y", "a\0b",
     "s3://key:secretword@bucket/x", "s3://bucket/x?secretword", "s3://bucket/../x",
     "s3://[", "gs://bucket"],
)  # fmt: skip
def test_invalid_places_are_refused_without_secrets(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_place(url)
    assert "secretword" not in str(caught.value)
