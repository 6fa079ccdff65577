"""Cases of numbers, enums and bool."""

from __future__ import annotations

from .case import OTLP, PROTOJSON, REJECT, RFC, Group

TYPES = PROTOJSON + "field-representation"
RANGES = PROTOJSON + "out-of-range-numeric-values"
INT64_MAX, INT64_MIN, UINT64_MAX = 2**63 - 1, -(2**63), 2**64 - 1

INTEGERS: dict[str, int | None] = {
    "0": 0, "1": 1, "-1": -1, "1e3": 1000, "1E3": 1000, "1e+3": 1000, "-2e2": -200, "1.0": 1,
    "-7.000": -7, "1.50e1": 15, "10e-1": 1, "100000e-5": 1, "0.0": 0, "0e5": 0, "1e-0": 1,
    "1e0003": 1000, "1.7e18": 17 * 10**17, "9007199254740991": 2**53 - 1,
    "9007199254740993": 2**53 + 1, "9007199254740993.0": 2**53 + 1,
    "9007199254740993e0": 2**53 + 1, "90071992547409930e-1": 2**53 + 1,
    "9223372036854775807": INT64_MAX, "-9223372036854775808": INT64_MIN,
    "9.223372036854775807e18": INT64_MAX, "-9.223372036854775808e18": INT64_MIN,
    "1.5": None, "1e-1": None, "1e-400": None, "9007199254740993.5": None,
    "0.99999999999999999999": None, "1.00000000000000000001": None,
    "9223372036854775807.5": None, "9223372036854775808": None, "-9223372036854775809": None,
    "1e19": None, "1e400": None, "1e999999999": None, "1e-999999999": None,
}  # fmt: skip
"""Numbers, and the integers that they are; None for numbers that no int64 equals."""

NOT_NUMBERS = {
    "empty": "", "space before": " 1", "space after": "1 ", "plus": "+1", "hexadecimal": "0x10",
    "underscore": "1_000", "comma": "1,000", "letters": "abc", "two signs": "--1",
    "exponent without digits": "1e", "only an exponent": "e1", "no digit before the point": ".5",
    "no digit after the point": "1.", "arabic digits": "\u0661", "superscript": "\u00b2",
}  # fmt: skip

DOUBLES: dict[str, float] = {
    "0": 0.0, "1": 1.0, "-1": -1.0, "0.0": 0.0, "-0.0": -0.0, "1.5": 1.5, "0.1": 0.1,
    "0.30000000000000004": 0.30000000000000004, "1e3": 1000.0, "1E-3": 0.001, "1e300": 1e300,
    "5e-324": 5e-324, "2.2250738585072014e-308": 2.2250738585072014e-308,
    "1.7976931348623157e308": 1.7976931348623157e308, "123456789012345678": 123456789012345680.0,
    "9007199254740993": 9007199254740992.0, "1e22": 1e22, "1e23": 1e23,
    "0.1000000000000000055511151231257827": 0.1,
}  # fmt: skip


def groups() -> list[Group]:
    """Return the cases."""
    return [_int64(), _uint64(), _uint32(), _enum(), _double(), _bool()]


def _int64() -> Group:
    group = Group("int64", TYPES)
    for text, number in INTEGERS.items():
        outcome = REJECT if number is None else {"intValue": str(number)}
        source = RANGES if number is None or "." in text else TYPES
        group.value(f"number {text}", f'{{"intValue":{text}}}', outcome, source=source)
        group.value(f"string {text}", f'{{"intValue":"{text}"}}', outcome, source=source)
    group.value("minus zero", '{"intValue":-0}', {"intValue": "0"})
    group.value("zero with a huge exponent", '{"intValue":0e999999}', {"intValue": "0"}, REJECT)
    group.value("leading zero in a string", '{"intValue":"01"}', {"intValue": "1"}, REJECT)
    for title, text in NOT_NUMBERS.items():
        group.value(f"string {title}", f'{{"intValue":"{text}"}}', REJECT)
    for text in ("true", "[]", "{}", '"NaN"', '"Infinity"'):
        group.value(f"type {text}", f'{{"intValue":{text}}}', REJECT)
    return group


def _uint64() -> Group:
    group = Group("uint64", TYPES)
    exact = {
        '"18446744073709551615"': UINT64_MAX, "18446744073709551615": UINT64_MAX, '"0"': 0, "0": 0,
        "1.7e18": 17 * 10**17, '"1.7e18"': 17 * 10**17, "1.8446744073709551615e19": UINT64_MAX,
        "9007199254740993.0": 2**53 + 1,
    }  # fmt: skip
    for text, number in exact.items():
        group.span(
            f"accepted {text}", f'"startTimeUnixNano":{text}', {"startTimeUnixNano": str(number)},
            without=("startTimeUnixNano",),
        )  # fmt: skip
    for text in ("-1", '"-1"', "18446744073709551616", '"18446744073709551616"', "1.5", "1e20"):
        group.span(
            f"out of range {text}", f'"startTimeUnixNano":{text}', REJECT,
            without=("startTimeUnixNano",), source=RANGES,
        )  # fmt: skip
    for text in ('""', "true", "[]", '"2023-11-14T22:13:20Z"'):
        group.span(
            f"type {text}", f'"startTimeUnixNano":{text}', REJECT, without=("startTimeUnixNano",)
        )
    return group


def _uint32() -> Group:
    group = Group("uint32", TYPES)
    exact = {
        "4294967295": 2**32 - 1, '"4294967295"': 2**32 - 1, "1e2": 100, '"1e2"': 100, "257.0": 257,
    }  # fmt: skip
    for key in ("flags", "droppedAttributesCount"):
        for text, number in exact.items():
            group.span(f"{key} {text}", f'"{key}":{text}', {key: number})
        for text in ("4294967296", "-1", '"-1"', "1.5"):
            group.span(f"{key} {text}", f'"{key}":{text}', REJECT, source=RANGES)
        for text in ('""', "true"):
            group.span(f"{key} type {text}", f'"{key}":{text}', REJECT)
    return group


def _enum() -> Group:
    group = Group("enum", OTLP + "json-protobuf-encoding")
    for number in range(6):
        group.span(f"kind {number}", f'"kind":{number}', {"kind": number})
    for number in range(3):
        group.span(
            f"status {number}", f'"status":{{"code":{number}}}', {"status": {"code": number}}
        )
    group.span(
        "unknown value", '"kind":77', {"kind": 77}, source=PROTOJSON + "field-representation"
    )
    group.span("integer as a string", '"kind":"2"', {"kind": 2}, REJECT)
    group.span("integer with a fraction of zero", '"kind":2.0', {"kind": 2}, REJECT)
    group.span("name", '"kind":"SPAN_KIND_SERVER"', {"kind": 2}, REJECT)
    group.span("status name", '"status":{"code":"STATUS_CODE_OK"}', {"status": {"code": 1}}, REJECT)
    for text in ('"SERVER"', '"span_kind_server"', '""', "2.5", "true", "[]", "2147483648"):
        group.span(f"bad {text}", f'"kind":{text}', REJECT)
    return group


def _double() -> Group:
    group = Group("double", TYPES)
    for text, number in DOUBLES.items():
        group.value(f"number {text}", f'{{"doubleValue":{text}}}', {"doubleValue": number})
        group.value(f"string {text}", f'{{"doubleValue":"{text}"}}', {"doubleValue": number})
    for text in ("NaN", "Infinity", "-Infinity"):
        group.value(f"string {text}", f'{{"doubleValue":"{text}"}}', {"doubleValue": text})
        group.value(
            f"bare {text}", f'{{"doubleValue":{text}}}', REJECT, {"doubleValue": text},
            source=RFC + "9",
        )  # fmt: skip
    group.value(
        "minus zero without a point", '{"doubleValue":-0}', {"doubleValue": -0.0},
        {"doubleValue": 0.0},
    )  # fmt: skip
    for text in ("1e-400", '"1e-400"'):
        group.value(f"underflow {text}", f'{{"doubleValue":{text}}}', {"doubleValue": 0.0}, REJECT)
    for text in ("1e309", "-1e309", '"1e309"', '"-1e309"'):
        group.value(f"overflow {text}", f'{{"doubleValue":{text}}}', REJECT, source=RANGES)
    for text in ('""', '"abc"', '" 1"', '"1 "', '"nan"', '"inf"', '"+Infinity"', '"0x1p3"',
                 '"1,5"', "true", "[]", "{}"):  # fmt: skip
        group.value(f"bad {text}", f'{{"doubleValue":{text}}}', REJECT)
    return group


def _bool() -> Group:
    group = Group("bool", TYPES)
    for text in ("true", "false"):
        group.value(text, f'{{"boolValue":{text}}}', {"boolValue": text == "true"})
    for text in ('"true"', '"false"', "1", "0", '""', "[]", "{}"):
        group.value(f"bad {text}", f'{{"boolValue":{text}}}', REJECT)
    group.value("capital", '{"boolValue":True}', REJECT, source=RFC + "3")
    return group
