"""Cases of the JSON grammar: layout, tokens, and text around the document."""

from __future__ import annotations

import json

from .case import REJECT, RFC, Group, base_span, of_span

CONFORMANCE = (
    "https://github.com/protocolbuffers/protobuf/blob/main/conformance/"
    "binary_json_conformance_suite.cc"
)


def groups() -> list[Group]:
    """Return the cases."""
    return [_layout(), _grammar()]


def _layout() -> Group:
    group = Group("layout", RFC + "2")
    document = of_span(base_span("layout"))
    compact = json.dumps(document, separators=(",", ":"))
    for title, text in (
        ("compact", compact), ("with spaces", json.dumps(document)),
        ("indented", json.dumps(document, indent=2)),
        ("indented with tabs", json.dumps(document, indent="\t")),
        ("carriage returns", json.dumps(document, indent=1).replace("\n", "\r\n")),
        ("white space around", f" \t\r\n{compact}\n\n "), ("final line feed", compact + "\n"),
        ("space ahead of colons", compact.replace('":', '" \n:')),
    ):  # fmt: skip
        group.document(title, text, document)
    group.document("byte order mark", "\ufeff" + compact, document, REJECT, source=RFC + "8.1")
    return group


def _grammar() -> Group:
    group = Group("grammar", RFC + "2")
    compact = json.dumps(of_span(base_span("grammar")), separators=(",", ":"))
    for title, data in (
        ("empty file", b""), ("white space only", b" \n"), ("cut off", compact[:-3].encode()),
        ("cut off in a string", compact[:60].encode()), ("closed twice", compact.encode() + b"}"),
        ("text after the document", compact.encode() + b"x"),
        ("nul after the document", compact.encode() + b"\0"),
        ("two documents", compact.encode() * 2), ("utf-16", compact.encode("utf-16")),
        ("utf-16 without a mark", compact.encode("utf-16-le")),
        ("form feed", b"\x0c" + compact.encode()),
        ("no-break space", b"\xc2\xa0" + compact.encode()),
        ("missing comma", compact.replace('","', '" "', 1).encode()),
        ("two commas", compact.replace('","', '",,"', 1).encode()),
        ("missing colon", compact.replace('":', '" ', 1).encode()),
        ("brackets that do not match", compact.replace("}]}]", "]}]}").encode()),
        ("key that is no string", b'{1:2}'), ("protobuf", b"\x0a\x0e\x12\x0c\x12\x0a\x2a\x01s"),
    ):  # fmt: skip
        group.document(title, data, REJECT)
    for title, text in (
        ("trailing comma in an object", compact[:-1] + ",}"),
        ("trailing comma in an array", compact.replace("]", ",]", 1)),
        ("line comment", "// c\n" + compact), ("block comment", "/* c */" + compact),
        ("hash comment", "# c\n" + compact), ("single quotes", compact.replace('"', "'")),
        ("key without quotes", compact.replace('"name"', "name")),
    ):  # fmt: skip
        group.document(title, text, REJECT, source=CONFORMANCE)
    for title, token in (
        ("leading zero", "01"), ("plus sign", "+1"), ("point first", ".5"), ("point last", "1."),
        ("hexadecimal", "0x10"), ("exponent without digits", "1e"), ("sign alone", "-"),
        ("undefined", "undefined"), ("capital true", "TRUE"), ("big integer suffix", "1n"),
        ("underscore", "1_000"),
    ):  # fmt: skip
        group.value(f"number {title}", f'{{"intValue":{token}}}', REJECT, source=RFC + "6")
    return group
