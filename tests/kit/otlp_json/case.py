"""One case of the corpus: a document, the outcomes that its rule allows, and the rule's source."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from dataclasses import dataclass
from typing import Any, Final

REJECT: Final = "reject"
Outcome = dict[str, Any] | str
"""The content of an accepted document, or `REJECT`."""

OTLP: Final = "https://opentelemetry.io/docs/specs/otlp/#"
PROTOJSON: Final = "https://protobuf.dev/programming-guides/json/#"
RFC: Final = "https://www.rfc-editor.org/rfc/rfc8259#section-"
PROTO: Final = (
    "https://github.com/open-telemetry/opentelemetry-proto/blob/main/opentelemetry/proto/"
)

START, END = "1700000000000000000", "1700000000000000001"


@dataclass(frozen=True)
class Case:
    """A document and the outcomes that a conforming reader may have."""

    name: str
    group: str
    title: str
    data: bytes
    outcomes: tuple[Outcome, ...]
    source: str
    """The URL of the section that contains the rule."""

    @property
    def verdict(self) -> str:
        """`accept` or `reject`, or `either` if the rule leaves the choice to the reader."""
        rejects = [each == REJECT for each in self.outcomes]
        return "reject" if all(rejects) else "either" if any(rejects) else "accept"


class Group:
    """Cases of one rule."""

    def __init__(self, name: str, source: str) -> None:
        """Start a group without cases."""
        self.name, self.source = name, source
        self.cases: list[Case] = []

    def document(
        self, title: str, text: str | bytes, *outcomes: Outcome, source: str | None = None
    ) -> None:
        """Add a case: a complete document."""
        data = text if isinstance(text, bytes) else text.encode()
        name = stem = f"{self.name}-{_slug(title)}"
        others = {each.name for each in self.cases}
        for number in itertools.count(2):
            if name not in others:
                break
            name = f"{stem}-{number}"
        self.cases.append(
            Case(name, self.name, title, data, outcomes, self.source if source is None else source)
        )

    def span(
        self,
        title: str,
        members: str | bytes,
        *outcomes: Outcome,
        without: tuple[str, ...] = (),
        source: str | None = None,
    ) -> None:
        """Add a case: a span with the text `members`, and the base members but `without`.

        An outcome is the span's content beside the base members.
        """
        base = base_span(self.name + title, without)
        head = json.dumps(base, separators=(",", ":"))[:-1].encode()
        text = members if isinstance(members, bytes) else members.encode()
        comma = b"," if base and text else b""
        data = b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + head + comma + text + b"}]}]}]}"
        expected = [each if isinstance(each, str) else of_span(base | each) for each in outcomes]
        self.document(title, data, *expected, source=source)

    def value(
        self, title: str, text: str | bytes, *outcomes: Outcome, source: str | None = None
    ) -> None:
        """Add a case: the attribute value (AnyValue) `text`; an outcome is its content."""
        data = text if isinstance(text, bytes) else text.encode()
        members = b'"attributes":[{"key":"k","value":' + data + b"}]"
        expected = [
            each if isinstance(each, str) else {"attributes": [{"key": "k", "value": each}]}
            for each in outcomes
        ]
        self.span(title, members, *expected, source=source)


def _slug(title: str) -> str:
    """Return `title` as a part of a file name; signs and quotes become words."""
    spelled = re.sub(r"(?<!utf)-(?=\d)", " minus ", title.lower())
    for sign, word in (('"', " quoted "), (".", " point "), ("+", " plus "), ("{}", " object "),
                       ("[]", " array ")):  # fmt: skip
        spelled = spelled.replace(sign, word)
    return "-".join(re.findall("[a-z0-9]+", spelled))


def base_span(name: str, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the members of a span that backends store; its ids depend on `name`."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    members = {
        "traceId": digest[:32],
        "spanId": digest[32:48],
        "name": "s",
        "startTimeUnixNano": START,
        "endTimeUnixNano": END,
    }
    return {key: value for key, value in members.items() if key not in without}


def of_span(span: dict[str, Any]) -> dict[str, Any]:
    """Return the document with one span."""
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
