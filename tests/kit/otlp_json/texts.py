"""Cases of strings, bytes and ids."""

from __future__ import annotations

from .case import OTLP, PROTO, PROTOJSON, REJECT, RFC, Group

TYPES = PROTOJSON + "field-representation"
ID = "5b8efff798038103d269b633813fc60c"


def groups() -> list[Group]:
    """Return the cases."""
    return [_string(), _bytes(), _ids()]


def _string() -> Group:
    group = Group("string", TYPES)
    escapes = {
        "empty": ("", ""), "ascii": ("abc", "abc"), "nul escape": (r"\u0000", "\0"),
        "short escapes": (r"\"\\\/\b\f\n\r\t", '"\\/\b\f\n\r\t'),
        "escaped ascii": (r"\u0041\u007a", "Az"), "two bytes": ("\u00e9", "\u00e9"),
        "two bytes escaped": (r"\u00e9\u00E9", "\u00e9\u00e9"), "three bytes": ("\u20ac", "\u20ac"),
        "four bytes": ("\U0001f642", "\U0001f642"),
        "escaped pair": (r"\ud83d\ude42", "\U0001f642"),
        "line separators": ("\u2028\u2029", "\u2028\u2029"), "delete": ("\x7f", "\x7f"),
        "byte order mark": ("\ufeff", "\ufeff"), "noncharacter": ("\uffff", "\uffff"),
        "decomposed": ("e\u0301", "e\u0301"), "long": ("x" * 10_000, "x" * 10_000),
        "looks like json": (r"{\"a\":[1,2]}", '{"a":[1,2]}'),
    }  # fmt: skip
    for title, (written, text) in escapes.items():
        group.value(title, f'{{"stringValue":"{written}"}}', {"stringValue": text})
    halves = {
        "high half": (r"a\ud83db", "a\ufffdb"), "low half": (r"a\ude42b", "a\ufffdb"),
        "reversed pair": (r"\ude42\ud83d", "\ufffd\ufffd"),
        "two high halves": (r"\ud83d\ud83d", "\ufffd\ufffd"),
    }  # fmt: skip
    for title, (written, text) in halves.items():
        group.value(
            title, f'{{"stringValue":"{written}"}}', REJECT, {"stringValue": text},
            source=RFC + "8.2",
        )  # fmt: skip
    for title, raw, count in (
        ("byte ff", b"\xff", 1), ("cut character", b"\xe2\x82", 2), ("overlong", b"\xc0\xaf", 2),
        ("encoded surrogate", b"\xed\xa0\x80", 3), ("beyond unicode", b"\xf4\x90\x80\x80", 4),
    ):  # fmt: skip
        replaced = [{"stringValue": "\ufffd" * number} for number in range(1, count + 1)]
        group.value(
            f"not utf-8 {title}", b'{"stringValue":"' + raw + b'"}', REJECT, *replaced,
            source=RFC + "8.1",
        )  # fmt: skip
    for title, raw in (
        ("raw control", b"\x01"), ("raw line feed", b"\n"), ("raw tab", b"\t"), ("raw nul", b"\0"),
        ("escape x", rb"\x41"), ("escape of three digits", rb"\u12"),
        ("escape of other digits", rb"\u12g4"), ("apostrophe escape", rb"\'"),
    ):  # fmt: skip
        group.value(title, b'{"stringValue":"' + raw + b'"}', REJECT, source=RFC + "7")
    for text in ("5", "true", "[]", "{}", '["a"]'):
        group.value(f"bad {text}", f'{{"stringValue":{text}}}', REJECT)
        group.span(f"name {text}", f'"name":{text}', REJECT, without=("name",))
    return group


def _bytes() -> Group:
    group = Group("bytes", TYPES)
    forms = {
        "empty": ("", ""), "standard": ("+/8=", "+/8="), "url-safe": ("-_8=", "+/8="),
        "standard without padding": ("+/8", "+/8="), "url-safe without padding": ("-_8", "+/8="),
        "one byte": ("AA==", "AA=="), "one byte without padding": ("AA", "AA=="),
        "three bytes": ("AQID", "AQID"), "escaped slash": (r"+\/8=", "+/8="),
    }  # fmt: skip
    for title, (written, canonical) in forms.items():
        group.value(title, f'{{"bytesValue":"{written}"}}', {"bytesValue": canonical})
    group.value("part of the padding", '{"bytesValue":"AA="}', {"bytesValue": "AA=="}, REJECT)
    group.value("bits after the end", '{"bytesValue":"Zh=="}', {"bytesValue": "Zg=="}, REJECT)
    for title, written in (
        ("one character", "A"), ("five characters", "AAAAA"), ("padding inside", "AB=C"),
        ("too much padding", "AA==="), ("space", "A A="), ("other characters", "!!!!"),
        ("not ascii", "\u00e9\u00e9\u00e9\u00e9"),
    ):  # fmt: skip
        group.value(title, f'{{"bytesValue":"{written}"}}', REJECT)
    for text in ("5", "true", "{}", "[1,2]"):
        group.value(f"bad {text}", f'{{"bytesValue":{text}}}', REJECT)
    return group


def _ids() -> Group:
    group = Group("id", OTLP + "json-protobuf-encoding")
    mixed = "".join(c.upper() if n % 2 else c for n, c in enumerate(ID))
    for title, text in (("lower case", ID), ("upper case", ID.upper()), ("mixed case", mixed)):
        group.span(title, f'"traceId":"{text}"', {"traceId": ID}, without=("traceId",))
    group.span(
        "span id in upper case", '"spanId":"EEE19B7EC3C1B174"', {"spanId": "eee19b7ec3c1b174"},
        without=("spanId",),
    )  # fmt: skip
    group.span(
        "parent id", '"parentSpanId":"EEE19B7EC3C1B174"', {"parentSpanId": "eee19b7ec3c1b174"}
    )
    group.span("empty parent id", '"parentSpanId":""', {})
    group.span(
        "ids of a link", f'"links":[{{"traceId":"{ID.upper()}","spanId":"eee19b7ec3c1b174"}}]',
        {"links": [{"traceId": ID, "spanId": "eee19b7ec3c1b174"}]},
    )  # fmt: skip
    for title, text in (
        ("base64", '"W47/95gDgQPSabYzgT/GDA=="'), ("an odd number of digits", f'"{ID[:-1]}"'),
        ("a letter", f'"{ID[:-1]}g"'), ("a prefix", f'"0x{ID[:-2]}"'),
        ("a space", f'" {ID[:-1]}"'), ("dashes", '"5b8efff7-9803-8103-d269-b633813fc60c"'),
        ("wide digits", '"' + "\uff11" * 32 + '"'), ("number", "5"), ("array", "[91,142]"),
        ("object", "{}"),
    ):  # fmt: skip
        group.span(title, f'"traceId":{text}', REJECT, without=("traceId",))
    invalid = PROTO + "trace/v1/trace.proto"
    for key, title, text in (
        ("traceId", "trace id of 8 bytes", "0102030405060708"),
        ("traceId", "zero trace id", "0" * 32),
        ("spanId", "span id of 16 bytes", ID), ("spanId", "zero span id", "0" * 16),
    ):  # fmt: skip
        read = {} if not text.strip("0") else {key: text}
        group.span(
            title, f'"{key}":"{text}"', {key: text}, read, REJECT, without=(key,), source=invalid
        )
    for key in ("traceId", "spanId"):
        group.span(f"empty {key}", f'"{key}":""', {}, REJECT, without=(key,), source=invalid)
        group.span(f"absent {key}", "", {}, REJECT, without=(key,), source=invalid)
    return group
