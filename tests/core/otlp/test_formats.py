from __future__ import annotations

from pathlib import Path

import pytest

from cirron_otel.core.otlp.formats import Compression, Encoding, Format, compression_of, format_of

JSON, PROTO = Encoding.JSON, Encoding.PROTO


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.json", Format(JSON)),
        ("a.jsonl", Format(JSON)),
        ("dir.binpb/a.JSONL", Format(JSON)),
        ("a.binpb", Format(PROTO)),
        ("a.jsonl.gz", Format(JSON, Compression.GZIP)),
        ("a.json.ZST", Format(JSON, Compression.ZSTD)),
        ("a.b.binpb.zst", Format(PROTO, Compression.ZSTD)),
        ("a.binpb.gz", Format(PROTO, Compression.GZIP)),
        ("a.gz", None),
        ("a.pb", None),
        ("a.json.gz.zst", None),
        ("a.json.bak", None),
        (".json", None),
        ("a", None),
        ("-", None),
    ],
)
def test_suffix_determines_the_format(name: str, expected: Format | None) -> None:
    assert format_of(name) == expected
    assert format_of(Path(name)) == expected


def test_compression_is_read_for_any_name() -> None:
    assert compression_of("weights.tar.GZ") is Compression.GZIP
    assert compression_of("a.zst") is Compression.ZSTD
    assert compression_of("a.json") is Compression.NONE
