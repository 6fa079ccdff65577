"""Every command on spools that contain a hostile file and good files.

No command ends in a traceback or an internal error, and the good batches survive a conversion there
and back. If its exit code is 0, everything comes back.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cirron_otel import exactjson
from cirron_otel.core.records.validate import validate_batch
from cirron_otel.tools.cli.main import run
from tests.tools.convert.test_hostile_values import (
    LOWER,
    batch_with,
    deep,
    name_of,
)

GOOD = (1, 2)
Make = Callable[[Path], object]


def odd(span: dict[str, Any] | None = None, **top: Any) -> bytes:
    """Return a batch with one span, in which the text "@" is replaced by a long number."""
    batch = json.loads(batch_with("1", 3))
    batch["spans"][0] |= span or {}
    return json.dumps(batch | top).encode().replace(b'"@"', b"9" * 300)


def mark(value: object) -> dict[str, Any]:
    return {
        "id": f"{5:016x}{LOWER}", "span_id": f"{3:016x}{LOWER}", "name": "loss", "attrs": {},
        "value_type": "float", "value": value, "ts_ns": 15, "kind": "point",
    }  # fmt: skip


def file(content: bytes, name: bytes = b"odd.json") -> Make:
    return lambda spool: (spool / os.fsdecode(name)).write_bytes(content)


def bind_socket(spool: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        here = Path.cwd()
        os.chdir(spool)  # the path of a socket has 107 bytes at most
        try:
            bound.bind("odd.json")
        finally:
            os.chdir(here)


SPAN_KEYS = tuple(json.loads(batch_with("1"))["spans"][0])
CASES: dict[str, Make] = {
    "directory": lambda spool: (spool / "odd.json").mkdir(),
    "pipe": lambda spool: os.mkfifo(spool / "odd.json"),
    "pipe that is temporary": lambda spool: os.mkfifo(spool / "odd.json.tmp"),
    "socket": bind_socket,
    "link to itself": lambda spool: (spool / "odd.json").symlink_to("odd.json"),
    "link to nothing": lambda spool: (spool / "odd.json").symlink_to("nowhere"),
    "empty": file(b""),
    "NULs": file(bytes(5_000)),
    "cut off": file(odd()[:-30]),
    "garbage after it": file(odd() + b"garbage"),
    "byte order mark": file(b"\xef\xbb\xbf" + odd()),
    "UTF-16": file(odd().decode().encode("utf-16")),
    "not UTF-8": file(odd().replace(b"step", b"\xff\xfe")),
    "huge exponent as a time": file(odd({"end_ns": "@"}).replace(b"9" * 300, b"1e" + b"9" * 20)),
    "huge integers": file(odd(dict.fromkeys(SPAN_KEYS[3:12], "@"), created_ns="@")),
    "negative": file(odd({"start_ns": -5, "end_ns": -9, "index": -1, "rank": -7}, created_ns=-1)),
    "not finite": file(odd({"start_ns": float("nan"), "attrs": {"a": float("-inf")}})),
    "far times": file(odd({"start_ns": 2**63 - 1, "end_ns": 2**63 - 1}, created_ns=2**63 - 1)),
    "500 deep": file(batch_with(deep("[", "]", 500), 3)),
    "900 deep": file(batch_with(deep('{"a":', "}", 900), 3)),
    "5000 deep": file(batch_with(deep("[", "]", 5_000), 3)),
    "name not UTF-8": file(odd(), b"caf\xe9.json"),
    "name of control characters": file(odd(), b"a\n\x1b[2J.json"),
    "records of other types": file(odd(spans=[1, None, []], marks=[{"a": 1}], snapshots=[None])),
    "values of other types": file(odd({key: [1, {"a": None}] for key in SPAN_KEYS}, batch_id={})),
    "nulls": file(odd(dict.fromkeys(SPAN_KEYS), batch_id=None, created_ns=None)),
    "lone surrogates": file(
        odd({"id": "\ud800", "name": "\ud800\0", "attrs": {"\ud800": "\ud800"}}, batch_id="\ud800")
    ),
    "circle": file(odd({"parent_id": f"{3:016x}{LOWER}", "name": "epoch"})),
    "repeated key": file(odd()[:-1] + b',"spans":[]}'),
    "odd otel": file(odd(otel={"session": 5, "part": {"x": 1}, "resource_spans": [1], "copy": -1})),
    "spans that are not there": file(
        odd(otel={"resource_spans": [{"scope_spans": [{"spans": 10**9}]}]})
    ),
    "values of marks": file(odd(marks=[mark(v) for v in (10**400, 1e308, "1e" + "9" * 20, None)])),
    "other version": file(odd(schema_version=2)),
}


def call(*arguments: object, codes: tuple[int, ...] = (0, 1), capsys: Any) -> int:
    code = run([str(argument) for argument in arguments])
    text = "".join(capsys.readouterr())
    assert "Traceback" not in text
    assert "internal error" not in text
    assert "please report" not in text
    assert code in codes, text
    assert code == 0 or "cirron-otel: " in text or arguments[0] == "spool"
    return code


@pytest.mark.parametrize("case", CASES)
def test_every_command(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, there, back = tmp_path / "in", tmp_path / "there.binpb", tmp_path / "back"
    (source / "spool").mkdir(parents=True)
    for number in GOOD:
        (source / "spool" / name_of(number)).write_bytes(batch_with("1", number))
    CASES[case](source / "spool")
    code = call("convert", source, there, capsys=capsys)
    assert call("convert", there, back, capsys=capsys) == 0
    names = {path.name for path in (source / "spool").iterdir() if path.name.endswith(".json")}
    returned = {path.name for path in (back / "spool").iterdir()}
    assert {name_of(number) for number in GOOD} <= returned <= names
    assert code == 1 or returned == names
    for name in returned:
        contents = ((folder / "spool" / name).read_bytes() for folder in (source, back))
        assert exactjson.equal(*map(exactjson.loads, contents))
    # A copy needs no translation, so it may accept batches that OTLP does not.
    assert call("convert", source, tmp_path / "copy", capsys=capsys) <= code
    call("convert", source, tmp_path / "part", "--select", "name=step", capsys=capsys)
    verified = call("spool", "verify", source, capsys=capsys)
    assert verified == 1 or code == 0
    for name in names - returned:
        path = source / "spool" / name
        assert not path.is_file() or validate_batch(path.read_bytes(), name)
    call("spool", "ls", source, capsys=capsys)
    call("spool", "show", source, capsys=capsys)
    call("report", source, "--html", tmp_path / "page.html", capsys=capsys)
    call("diagnose", source, capsys=capsys)
    call("runs", "report", tmp_path, "--group-by", "model", capsys=capsys)
    call("diff", source, back, capsys=capsys)
