"""Shorten strings for indexed columns, and determine the root scopes of spans.

An entry of a PostgreSQL index has at most 2,704 bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ....semconv import SESSION
from ...records.columns import TraceSpan, clean

MAX_KEY_BYTES = 200
_KEPT = 40


def bounded(value: str) -> str:
    """Return a short string unchanged; replace a long one with its beginning and its digest.

    Equal strings give equal results.
    """
    if len(value) * 4 <= MAX_KEY_BYTES:
        return clean(value)
    data = value.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_KEY_BYTES:
        return clean(value)
    return f"{clean(value[:_KEPT])}…{hashlib.sha256(data).hexdigest()}"


def local_root_ids(
    spans: Sequence[TraceSpan], session: str | None, *, is_one_process: bool
) -> dict[str, str]:
    """Return the topmost known scope of each span, by span id; set the rows' trace ids.

    A scope that maps to itself is a root. If the batch names its session, the session is the root
    of all spans. In a program's batch that does not name its session (`is_one_process`), a thread
    that was started outside any scope records spans without a parent: they get the root that all
    other spans share.
    """
    root_ids: dict[str, str] = {}
    for span in spans:
        if session is not None:
            span.trace_id = session
        root_ids.setdefault(span.id, span.trace_id)
    if session is not None:
        root_ids.setdefault(session, session)
    elif is_one_process:
        loose = {s.id for s in spans if s.parent_span_id is None and s.name != SESSION}
        others = {root_id for some_id, root_id in root_ids.items() if root_id not in loose}
        if len(others) == 1:
            [other] = others
            root_ids.update(dict.fromkeys(loose, other))
    return root_ids


def resolve_root(some_id: str, root_ids: dict[str, str]) -> str:
    """Follow `root_ids` from a scope to the topmost one; in a cycle, stop before it repeats."""
    seen = {some_id}
    while (parent_id := root_ids.get(some_id)) is not None and parent_id not in seen:
        seen.add(parent_id)
        some_id = parent_id
    return some_id
