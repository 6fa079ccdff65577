"""Structured logs on stderr: one line per message, without secrets.

Warnings of the same cause are written at most once a minute.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self, TextIO

from .options import LogOptions
from .values import MASK

FIELDS: Final = "fields"
"""A log call with `extra={"fields": {…}}` adds fields to its message."""
CAUSE: Final = "cause"
"""A log call with `extra={"cause": "…"}` sets the cause by which repeated warnings are recognized;
the default is the message template."""

_OURS = "cirron_otel"
_logger = logging.getLogger(__name__)
_SHORTEST = 4
_MAX_CAUSES = 1000
_MAX_DEPTH = 8
_MAX_TEXT = 10_000
_REPEAT_S = 60.0
# RFC 9110, "Authorization". After a header name, the complete value is masked. After a scheme
# without a header name, text is masked unless it looks like a word of a sentence. The user and
# password in a URL are also masked.
_CHARACTER = r"[A-Za-z0-9._~+/=-]"
_CREDENTIALS = re.compile(
    r"\b((?i:bearer|basic|digest)\s+)"
    rf"(?={_CHARACTER}*[0-9_~+=]|{_CHARACTER}*[a-z][A-Z]|{_CHARACTER}{{20}}){_CHARACTER}+"
)
_HEADER = re.compile(
    r"""\b((?:proxy-)?authorization|x-api-key)"""
    r"""(["']?\s*[:=,]\s*["']?(?:(?:bearer|basic|digest)\s+)?+)(?![<…])[^\s"',;]+""",
    re.IGNORECASE,
)
_USER_INFO = re.compile(r"(?<=://)[^\s/@]+@")


class Masking:
    """Masks secrets in text: known ones, and text that looks like credentials."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """Secrets of fewer than four characters are ignored: they occur in any text."""
        self._secrets: tuple[str, ...] = ()
        self.hide(secrets)

    def hide(self, secrets: Iterable[str]) -> None:
        """Also mask these secrets, for example those of a reloaded configuration."""
        # Longest first, because one secret may be part of another.
        ordered = {each for each in (*self._secrets, *secrets) if len(each) >= _SHORTEST}
        self._secrets = tuple(sorted(ordered, key=len, reverse=True))

    def text(self, text: str) -> str:
        """Return `text` with its secrets masked."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        text = _CREDENTIALS.sub(rf"\1{MASK}", text)
        text = _HEADER.sub(rf"\1\2{MASK}", text)
        return _USER_INFO.sub(f"{MASK}@", text)

    def value(self, value: object, depth: int = 0) -> Any:
        """Return a field's value with its secrets masked, in a form that JSON can represent."""
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)  # JSON cannot represent NaN and infinity
        if value is None or isinstance(value, bool | int | float):
            return value
        if depth < _MAX_DEPTH and isinstance(value, dict):
            return {
                self.text(_str(name)): self.value(each, depth + 1) for name, each in value.items()
            }
        if depth < _MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
            return [self.value(each, depth + 1) for each in value]
        return self.text(_str(value))


class Repeats(logging.Filter):
    """Passes one warning per cause per minute, with the number of warnings suppressed since the
    previous one.
    """

    def __init__(
        self, seconds: float = _REPEAT_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._seconds, self._clock = seconds, clock
        self._lock = threading.Lock()
        # (time of the last warning that passed, number suppressed since then), by cause
        self._causes: OrderedDict[tuple[str, int, str], tuple[float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write `record`, and set its `repeated`, the number of suppressed
        warnings.
        """
        if record.levelno < logging.WARNING:
            return True
        cause = (record.name, record.levelno, _str(getattr(record, CAUSE, record.msg)))
        now = self._clock()
        with self._lock:
            since, held_back = self._causes.get(cause, (-self._seconds, 0))
            is_due = cause not in self._causes or now - since >= self._seconds
            self._causes[cause] = (now, 0) if is_due else (since, held_back + 1)
            self._causes.move_to_end(cause)
            if len(self._causes) > _MAX_CAUSES:
                self._causes.popitem(last=False)
        record.repeated = held_back
        return is_due


class Formatter(logging.Formatter):
    """Formats a record as one line of JSON or text."""

    def __init__(self, masking: Masking, format: str) -> None:
        """`format` is `json` or `text`."""
        super().__init__()
        self._masking, self._is_json = masking, format == "json"

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a line end."""
        line: dict[str, Any] = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._masking.text(_message(record)),
        }
        if fields := self._fields(record):
            line["fields"] = fields
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = self._masking.text(self.formatException(record.exc_info))
        return json.dumps(line) if self._is_json else _as_text(line)

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        extra = getattr(record, FIELDS, None)
        fields = dict(self._masking.value(extra)) if isinstance(extra, dict) else {}
        if repeated := getattr(record, "repeated", 0):
            fields["repeated"] = repeated
        return fields


def _message(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    # Arguments that do not match the template, or cannot be formatted.
    except Exception:
        text = _str(record.msg)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


def _str(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return f"a {type(value).__name__}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _as_text(line: dict[str, Any]) -> str:
    fields = "".join(
        f" {name}={json.dumps(value)}" for name, value in line.get("fields", {}).items()
    )
    error = f" error={json.dumps(line['error'])}" if "error" in line else ""
    text = f"{line['time']} {line['level']:<7} {line['message']}{fields}{error}"
    # Escape line ends and control sequences of terminals.
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to stderr, and ignores errors if stderr is closed."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        del record


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Log an exception that Python would write to stderr, such as one in a destructor."""
    error = (unraisable.exc_type, unraisable.exc_value, unraisable.exc_traceback)
    _logger.error("an exception was ignored: %s", unraisable.err_msg or "", exc_info=error)  # type: ignore[arg-type]


def _in_thread(failure: threading.ExceptHookArgs) -> None:
    """Log an exception that ended a thread."""
    error = (failure.exc_type, failure.exc_value, failure.exc_traceback)
    name = failure.thread.name if failure.thread is not None else "?"
    _logger.error("the thread %s ended with an error", name, exc_info=error)  # type: ignore[arg-type]


class Logging:
    """The logs of one process until `close`; a context manager."""

    def __init__(
        self,
        options: LogOptions,
        secrets: Iterable[str] = (),
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write this package's logs, and other packages' logs from level WARNING, to `stream`
        (default: stderr).
        """
        self.masking = Masking(secrets)
        self._handler = _Handler(stream or sys.stderr)
        self._handler.addFilter(Repeats(clock=clock))
        self._root, self._ours = logging.getLogger(), logging.getLogger(_OURS)
        self._before = (self._root.level, self._ours.level, self._root.handlers[:])
        self._root.handlers[:] = [self._handler]
        self._hooks = sys.unraisablehook, threading.excepthook
        sys.unraisablehook, threading.excepthook = _unraisable, _in_thread
        logging.captureWarnings(True)
        self.apply(options)

    def apply(self, options: LogOptions) -> None:
        """Set the level and the format."""
        level = getattr(logging, options.level.upper())
        self._handler.setFormatter(Formatter(self.masking, options.format))
        self._ours.setLevel(level)
        self._root.setLevel(max(level, logging.WARNING))

    def close(self) -> None:
        """Restore the previous state of the loggers."""
        self._root.setLevel(self._before[0])
        self._ours.setLevel(self._before[1])
        self._root.handlers[:] = self._before[2]
        sys.unraisablehook, threading.excepthook = self._hooks
        logging.captureWarnings(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
