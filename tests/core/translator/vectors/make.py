"""Writes the test vectors of docs/otlp-mapping.md: `python -m tests.core.translator.vectors.make`.

The inputs stand here; what the translator makes of them is written beside them. A change in a
written file is a change of the mapping: it is read by hand against docs/otlp-mapping.md.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cirron_otel import exactjson
from cirron_otel.core.translator.own.decode import Decoded
from cirron_otel.core.translator.translate import FromOtlp, to_otlp

from . import (
    batch_cases,
    digest_cases,
    foreign_cases,
    own_cases,
    sessions_cases,
    wire_cases,
)
from .cases import (
    CASES,
    Json,
    Vector,
    otlp_of,
)

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[3] / "docs" / "otlp-mapping.md"
EXAMPLE = re.compile(r"(<!-- vector: (\S+) (/\S+) -->\n```json\n)(.*?)(```)", re.DOTALL)


def text_of(value: Any, indent: int = 0, width: int = 96) -> str:
    """`value` as JSON text for people: on one line where it fits."""
    line = exactjson.dumps(value).decode()
    if len(line) + indent <= width or not isinstance(value, (dict, list)) or not value:
        return line
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        items = [
            f"{exactjson.dumps(key).decode()}: {text_of(item, indent + 1)}"
            for key, item in value.items()
        ]
        return "{\n" + ",\n".join(pad + item for item in items) + "\n" + " " * indent + "}"
    items = [text_of(item, indent + 1) for item in value]
    return "[\n" + ",\n".join(pad + item for item in items) + "\n" + " " * indent + "]"


def vars_of(decoded: Decoded) -> Json:
    """What came of a batch."""
    found = decoded.found
    return {
        "spans": found.spans,
        "marks": found.marks,
        "snapshots": found.snapshots,
        "synthetic": found.synthetic,
        "duplicates": decoded.duplicates,
    }


def at(value: Any, pointer: str) -> Any:
    """The part of `value` at a JSON pointer (RFC 6901)."""
    for token in pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


def complete(case: Json) -> None:
    """Add to the case what the translator makes of it."""
    vector = Vector(case)
    with vector.limits():
        if "otlp" in case:
            reader = FromOtlp()
            for _ in range(case.get("fed", 1)):
                found = reader.feed(vector.messages())
            found += reader.finish()
            case["batch"], case["name"] = found[-1].batch, found[-1].name
            if case.get("one_way"):
                case["found"] = vars_of(found[-1])
        elif "batch" in case:
            messages = to_otlp(case["batch"], vector.plan(), vector.name(), vector.options())
            case["otlp"] = otlp_of(messages)
        elif "files" in case:
            case["places"] = sessions_cases.places_of(case)


def main() -> None:
    """Write every vector beside this file."""
    for module in (wire_cases, batch_cases, own_cases, foreign_cases, sessions_cases):
        module.register()
    for case in CASES.values():
        complete(case)
    digest_cases.register()
    texts = {name: text_of(case) + "\n" for name, case in CASES.items()}
    for path in HERE.glob("*.json"):
        path.unlink()
    for name, text in texts.items():
        (HERE / f"{name}.json").write_text(text, encoding="utf-8")
    document = DOCUMENT.read_text(encoding="utf-8")
    document = EXAMPLE.sub(lambda m: m[1] + text_of(at(CASES[m[2]], m[3])) + "\n" + m[5], document)
    DOCUMENT.write_text(document, encoding="utf-8")
    print(len(CASES), "vectors")


if __name__ == "__main__":
    main()
