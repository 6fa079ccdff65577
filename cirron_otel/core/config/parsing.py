"""Parsers for the values of options, from calls, variables and files.

A Parser converts a raw value to the option's value, and raises ValueError if it is invalid.
Environment variables contain only text, so every parser accepts text.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import Any, NamedTuple
from urllib.parse import urlsplit

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_NONE = frozenset({"none", "null", "off"})
_INTEGER = re.compile(r"[+-]?[0-9_]{1,40}")
_SIZE = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_MAX_TEXT = 1000
_MAX_INTEGER = 2**63 - 1
_UP_TO_MAX = ", up to 2^63-1"
# RFC 9110, "Field Values": characters that need no quoting or folding in a header.
_HEADER_SAFE = re.compile(r"[\x21-\x7e]+")


class Parser(NamedTuple):
    """Reads one kind of value."""

    type: str
    """The type in the documentation."""
    expected: str
    """The text after "expected" in messages."""
    parse: Callable[[object], Any]
    """Returns the value. Raises ValueError or TypeError if it is invalid."""


def _text_of(value: object) -> str:
    if isinstance(value, str):
        return str.strip(str.__str__(value))
    raise ValueError


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value) if isinstance(value, Integral) else _text_of(value).lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError


BOOLEAN = Parser("bool", "true or false", _boolean)


def _real(value: object) -> float:
    if isinstance(value, bool):
        raise ValueError
    return float(value if isinstance(value, Real) else _text_of(value))


def _number_between(low: float, high: float, *, above: bool) -> Callable[[object], float]:
    def parse(value: object) -> float:
        number = _real(value)
        # NaN fails this comparison.
        if not low <= number <= high or (above and number == low):
            raise ValueError
        return number

    return parse


def number(low: float, high: float = math.inf, unit: str = "") -> Parser:
    """Return a parser of finite numbers from `low` to `high`."""
    of = f" of {unit}" if unit else ""
    limits = f"from {low:g} to {high:g}" if high < math.inf else f"of at least {low:g}"
    expected = f"a number{of} {limits}"
    finite = min(high, math.nextafter(math.inf, 0))
    return Parser("float", expected, _number_between(low, finite, above=False))


def number_above(low: float, high: float, unit: str) -> Parser:
    """Return a parser of numbers greater than `low`, up to `high`."""
    expected = f"a number of {unit} above {low:g}, up to {high:g}"
    return Parser("float", expected, _number_between(low, high, above=True))


def _whole(value: object) -> int:
    if isinstance(value, bool):
        raise ValueError
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real) and float(value).is_integer():
        return int(float(value))
    word = _text_of(value)
    if not _INTEGER.fullmatch(word):
        raise ValueError
    return int(word)


def _integer_from(low: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        number = _whole(value)
        if not low <= number <= _MAX_INTEGER:
            raise ValueError
        return number

    return parse


def integer(low: int) -> Parser:
    """Return a parser of whole numbers from `low` to 2^63-1."""
    return Parser("int", f"a whole number of at least {low}{_UP_TO_MAX}", _integer_from(low))


def _size(value: object) -> int:
    if not isinstance(value, str):
        return _integer_from(1)(value)
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError
    unit = _UNITS.get(match[2].lower())
    if unit is None:
        raise ValueError
    digits = match[1].replace("_", "")
    size = int(float(digits) * unit) if "." in digits else int(digits) * unit
    return _integer_from(1)(size)


SIZE = Parser("int", "a number of bytes, such as 1000000000, 500MB or 2GiB", _size)


def _one_of(words: Iterable[str]) -> Callable[[object], str]:
    known = frozenset(words)

    def parse(value: object) -> str:
        word = _text_of(value).lower()
        if word not in known:
            raise ValueError
        return word

    return parse


def one_of(*words: str) -> Parser:
    """Return a parser that accepts one of these words, in upper or lower case."""
    return Parser("str", f"one of {', '.join(words)}", _one_of(words))


def optional(parser: Parser) -> Parser:
    """Return a parser that also accepts None, written as `none`, `null` or `off` in text."""

    def parse(value: object) -> Any:
        is_none = value is None or value is False
        if is_none or (isinstance(value, str) and value.strip().lower() in _NONE):
            return None
        return parser.parse(value)

    return Parser(f"{parser.type} or None", f"{parser.expected}, or none", parse)


def word_or(word: str, parser: Parser) -> Parser:
    """Return a parser that also accepts one word, in upper or lower case."""

    def parse(value: object) -> Any:
        if isinstance(value, str) and value.strip().lower() == word:
            return word
        return parser.parse(value)

    return Parser(f"{parser.type} or str", f"{word}, or {parser.expected}", parse)


def _words(value: object) -> tuple[str, ...]:
    """Return the distinct words of a list or of comma-separated text, in lower case."""
    if isinstance(value, str):
        items: list[object] = [*value.split(",")]
    elif isinstance(value, list | tuple | set | frozenset):
        items = list(value)
    else:
        raise ValueError
    return tuple(dict.fromkeys(word for each in items if (word := _text_of(each).lower())))


def names() -> Parser:
    """Return a parser of names: `none` alone means no names; `auto` alone means all (None)."""

    def parse(value: object) -> tuple[str, ...] | None:
        words = _words(value)
        if words == ("auto",):
            return None
        return () if words == ("none",) else words

    return Parser("list[str] or None", "comma-separated names, or a list of names", parse)


_NOTHING = tuple((word,) for word in ("none", "off", "false", "no", "0"))


def some_of(*words: str, auto: bool = False) -> Parser:
    """Return a parser that accepts any of these words; `none` alone means no words.

    With `auto`, the word `auto` is also accepted if it is alone.
    """
    alone = ("auto", "none") if auto else ("none",)

    def parse(value: object) -> tuple[str, ...]:
        chosen = _words(value)
        if chosen in _NOTHING or (not chosen and not isinstance(value, str)):
            return ()
        if not chosen or not (set(chosen) <= set(words) or (auto and chosen == ("auto",))):
            raise ValueError
        return chosen

    expected = f"{' or '.join(alone)}, or some of {', '.join(words)}"
    return Parser("str or list[str]", expected, parse)


def _line(value: object) -> str:
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    line = str(value) if is_whole else _text_of(value)
    if not line or len(line) > _MAX_TEXT or not line.isprintable():
        raise ValueError
    return line


TEXT = Parser("str", f"one line of text, up to {_MAX_TEXT} characters", _line)


def _secret(value: object) -> str:
    secret = _line(value)
    if not _HEADER_SAFE.fullmatch(secret):
        raise ValueError
    return secret


SECRET = Parser("str", "printable ASCII without spaces", _secret)


def _endpoint(value: object) -> str:
    url = _line(value)
    parts = urlsplit(url)
    # `port` raises ValueError if it is invalid.
    is_plain = parts.username is None and not parts.query and not parts.fragment
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError
    if not is_plain or not _HEADER_SAFE.fullmatch(url):
        raise ValueError
    return url.rstrip("/")


ENDPOINT = Parser(
    "str", "an http:// or https:// URL without user, password, query or fragment", _endpoint
)


def _url_path(value: object) -> str:
    path = _line(value)
    if not _HEADER_SAFE.fullmatch(path) or "?" in path or "#" in path or path.startswith("//"):
        raise ValueError
    return path if path.startswith("/") else f"/{path}"


URL_PATH = Parser("str", "the path of a URL, such as /v1/traces", _url_path)


def _directory(value: object) -> str:
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path.strip() or "\0" in path:
        raise ValueError
    return str.__str__(path)


DIRECTORY = Parser("path", "the name of a directory", _directory)


def _every(value: object) -> int:
    """Return 0 for never, 1 for every scope, N for every Nth."""
    try:
        return int(_boolean(value))
    except ValueError:
        return _integer_from(0)(value)


EVERY = Parser("bool or int", "true, false, or N for every Nth scope", _every)


def _step_range(value: object) -> tuple[int, int]:
    if isinstance(value, (tuple, list)) and len(value) == 2:
        first, last = map(_integer_from(0), value)
    elif isinstance(value, str):
        begin, dots, end = value.strip().partition("..")
        first = _integer_from(0)(begin)
        last = _integer_from(0)(end) if dots else first
    else:
        first = last = _integer_from(0)(value)
    if last < first:
        raise ValueError
    return first, last


STEP_RANGE = Parser("range", "the first and the last step, such as 10..12", _step_range)


def _detail(value: object) -> int | None:
    every = _integer_from(0)(value)
    return every or None


DETAIL = optional(Parser("int", f"a whole number of at least 1{_UP_TO_MAX}", _detail))
