"""The options engine that the SDK and the collector share.

A table of options attaches a `Key` to each option. `read_option` takes the raw values that were
found for an option, the one with the highest precedence first. It returns the value in effect and
where it was found, and describes each rejected value without showing secrets.

The two tables differ in their policy for invalid values: the SDK reports the problem and falls back
to the next source, while the collector refuses to start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from reprlib import Repr
from typing import Any, Final, NamedTuple

from .parsing import Parser

MAX_FILE_BYTES: Final = 1_000_000
"""The largest configuration file."""
DEFAULT: Final = "the default"
"""The place of a value that no source sets."""


class Key(NamedTuple):
    """The properties of one option."""

    parser: Parser
    meaning: str
    """The description in the documentation."""
    unit: str = ""
    is_secret: bool = False
    """Messages never show the value."""
    at_once: bool = False
    """Collector: a reload applies a new value; without `at_once`, a restart is needed."""
    takes_none: bool = False
    """SDK: an explicit None is a value; for other options, None means that no value is given."""
    in_project: bool = True
    """SDK: cirron.yaml may set it. The file is found by walking up the directories and may belong
    to another user, so it must not decide where an API key is sent.
    """
    in_user_file: bool = True
    """SDK: ~/.cirron/config.toml may set it."""


class Candidate(NamedTuple):
    """A raw value of an option."""

    place: str
    """The place where it was found, as shown in messages."""
    value: object
    is_hidden: bool = False
    """Messages do not show the value, although the option is not a secret."""


class Reading(NamedTuple):
    """The result of `read_option`."""

    value: Any
    place: str
    """DEFAULT if no candidate is valid."""
    rejected: tuple[str, ...]
    """One line per invalid candidate ahead of the value in effect: its place, its value, and what
    was expected.
    """


def read_option(
    key: Key,
    default: Any,
    candidates: Iterable[Candidate],
    *,
    describe: Callable[[object, bool], str],
    errors: tuple[type[Exception], ...] = (ValueError, TypeError, OverflowError),
) -> Reading:
    """Return the first valid candidate, or the default.

    `describe(value, is_hidden)` formats a value for messages. `errors` are the exceptions that
    count as a rejection by the parser; pass `(Exception,)` for values set by a program, because
    any of their methods may raise any exception.
    """
    rejected: list[str] = []
    for candidate in candidates:
        try:
            value = key.parser.parse(candidate.value)
        except errors:
            text = describe(candidate.value, key.is_secret or candidate.is_hidden)
            rejected.append(f"{candidate.place} is {text}: expected {key.parser.expected}")
        else:
            return Reading(value, candidate.place, tuple(rejected))
    return Reading(default, DEFAULT, tuple(rejected))


_repr = Repr()
_repr.maxstring = 80
_repr.maxother = 80
_repr.maxlevel = 2
# Greedy, because a password may contain slashes, at signs and spaces.
_USER_INFO = re.compile(r"//.*@", re.DOTALL)


def masked_repr(value: object) -> str:
    """Return a short `repr` of a value, without the user information of a URL.

    An exception that the value's own methods raise may propagate.
    """
    plain = str(value) if isinstance(value, os.PathLike) else value
    # Mask before shortening: shortening may remove the @ and leave the password.
    return _repr.repr(_USER_INFO.sub("//…@", plain) if isinstance(plain, str) else plain)


class TextFileError(Exception):
    """A file cannot be read as text; the message completes a sentence that begins with its name."""


def read_text_file(
    path: Path, max_bytes: int = MAX_FILE_BYTES, *, blocks_on_pipe: bool = True
) -> str:
    """Return the text of a UTF-8 file, without its byte order mark. Raises TextFileError.

    `blocks_on_pipe=False` is for regular files: a pipe that has taken the file's place is an error.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | (0 if blocks_on_pipe else os.O_NONBLOCK)
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            data = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "its name is not valid"
        raise TextFileError(f"cannot be read: {reason}") from None
    if len(data) > max_bytes:
        raise TextFileError(f"is larger than {max_bytes:,} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TextFileError("is not UTF-8") from None
