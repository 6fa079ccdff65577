"""Generators of hostile batches: recorded ones, changed the way real and broken writers would."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from cirron_otel import exactjson
from cirron_otel.exactjson import Raw

from .recorded import ALL_BATCHES

RECORDED: list[dict[str, Any]] = [exactjson.loads(path.read_bytes()) for path in ALL_BATCHES]
LISTS = ("spans", "marks", "snapshots")


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"d": value}
    return value


texts = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["", "\ud800", "k\udfff", "a\0b", "é" * 200, "root", "0" * 32, "otel", "extra"]
    ),
)
numbers = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**40]),
    st.floats(allow_nan=True),
    st.sampled_from([-0.0, 1.0, 1e16, 5e-324]),
)
raws = st.sampled_from(
    [
        Raw(text)
        for text in (
            "1e400",
            "1e-99999999999999999999",
            "-0",
            "9" * 4100,
            '{"a":1,"a":2}',
            "0.1000000000000000055511",
            "1e-400",
        )
    ]
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts, raws)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
) | st.sampled_from([nested(15), nested(16), nested(17), nested(40), nested(120)])


@st.composite
def _change(draw: st.DrawFn, record: dict[str, Any]) -> Any:
    """Drop, rename, retype, add or repeat a key; or put something else in the record's place."""
    record = dict(record)
    how = draw(st.integers(0, 6))
    key = draw(st.sampled_from(sorted(record))) if record else ""
    if how == 0:
        record.pop(key, None)
    elif how == 1:
        record[draw(texts)] = record.pop(key, None)
    elif how in (2, 3):
        record[key] = draw(values)
    elif how == 4:
        record[draw(texts)] = draw(values)
    elif how == 5:
        inside = ",".join(f"{json.dumps(k)}:{exactjson.dumps_ascii(v)}" for k, v in record.items())
        return Raw(
            "{" + (inside + "," if inside else "") + f"{json.dumps(key)}:1,{json.dumps(key)}:2}}"
        )
    elif draw(st.integers(0, 9)) == 0:
        return draw(values)
    return record


@st.composite
def batches(draw: st.DrawFn) -> Any:
    """A recorded batch with up to four changes, at the top level and in its records."""
    batch = dict(draw(st.sampled_from(RECORDED)))
    for key in LISTS:
        batch[key] = list(batch[key][: draw(st.integers(0, 4))])
    for _ in range(draw(st.integers(0, 4))):
        where = draw(st.sampled_from(["top", *LISTS, *LISTS]))
        if where == "top":
            if not isinstance(changed := draw(_change(batch)), dict):
                return changed
            batch = changed
        elif isinstance(batch.get(where), list) and batch[where]:
            place = draw(st.integers(0, len(batch[where]) - 1))
            if isinstance(batch[where][place], dict):
                batch[where] = list(batch[where])
                batch[where][place] = draw(_change(batch[where][place]))
                record = batch[where][place]
                if isinstance(record, dict) and isinstance(record.get("stats"), dict):
                    record["stats"] = draw(_change(record["stats"]))
    return batch
