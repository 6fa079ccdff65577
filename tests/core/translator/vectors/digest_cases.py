"""Every derived id, with the parts that it is the hash of, and where it is found."""

from __future__ import annotations

from cirron_otel import exactjson
from cirron_otel.ids import digest, uuid4_shaped

from .cases import (
    BATCH_ID,
    CASES,
    CREATED,
    LOW,
    SESSION,
    STEP,
    Json,
    case,
    own_id,
    without,
)

FOREIGN_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def entry(use: str, vector: str, parts: list[str], first: int, tail: str = "") -> Json:
    """A derived id of the first bytes of a digest, and `tail`."""
    found = digest(*parts)
    return {"use": use, "vector": vector, "parts": parts, "gives": found[:first].hex() + tail}


def hashed(use: str, vector: str, kind: str, content: Json) -> Json:
    """The `batch_id` of a batch by its content."""
    parts = [kind, exactjson.dumps_sorted(content)]
    return {
        "use": use,
        "vector": vector,
        "parts": parts,
        "gives": uuid4_shaped(digest(*parts)),
        "uuid4": True,
    }


def register() -> None:
    key = digest(BATCH_ID, CREATED, "").hex()
    part, foreign = CASES["part"]["batch"], CASES["foreign-empty"]["batch"]
    segment = digest(SESSION, STEP, 1)[:8].hex() + LOW
    uses = [
        entry("span id of an id with a zero head", "zero-ids", ["0" * 16 + LOW], 8),
        entry("span id of an irregular id", "zero-ids", ["top"], 8),
        entry("key of a header", "", [BATCH_ID, str(CREATED), ""], 32),
        entry("span id of a record without an id", "no-ids", [key, "span", "0"], 8),
        entry("span id of a carrier", "carriers", [key, "carrier", "0"], 8),
        entry("trace id of a segment", "segment", [SESSION, STEP, "1"], 8, LOW),
        entry("span id of a segment's marker", "segment", ["cirron.segment", segment], 8),
        entry("span id of a running scope", "own", ["cirron.running", own_id("e90c2")], 8),
        entry("Cirron id of irregular ids", "foreign-ids", ["span", FOREIGN_TRACE, "0" * 16], 16),
        hashed("batch_id of a part", "part", "part", without(part, "batch_id")),
        hashed(
            "batch_id of a batch born in OTLP",
            "foreign-empty",
            "otlp",
            {"spans": foreign["spans"], "otel": foreign["otel"]},
        ),
        entry("trace id of an irregular session id", "odd-session", ["a session"], 16),
        entry("session of a batch about which nothing is known", "", ["session", "a.json"], 16),
        entry("span id of a lone surrogate", "", ["\ud800"], 8),
    ]
    case(
        "digests",
        "Every derived id: SHA-256 over `parts` as UTF-8, joined by NUL bytes; `vector` holds it.",
        digests=uses,
    )
