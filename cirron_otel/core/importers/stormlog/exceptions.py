"""The exceptions of out-of-memory events, from the bundles that describe them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from ....errors import InputError
from .discovery import Artifact
from .exact import parse_record
from .prepared import OutOfMemoryEvent
from .safe_files import read_regular

_METADATA: Final = "metadata.json"
_MAX_BYTES: Final = 16 * 2**20


def exceptions_of(
    artifacts: Iterable[Artifact], errors: Sequence[OutOfMemoryEvent]
) -> list[dict[str, Any]]:
    """Return an `exception` event for each error, with type and message from its bundle.

    An error belongs to the bundle that it names. Other errors and bundles of a session with the
    same reason belong together in order. Without a bundle, the type is the reason that the event
    reports, and the message is its context.
    """
    bundles: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
    for artifact in artifacts:
        if artifact.kind == "oom":
            key, description = _described(artifact)
            if description is not None:
                bundles.setdefault(key, {})[artifact.path.name] = description
    found = {}
    for number, error in enumerate(errors):
        waiting = bundles.get((error.session_id, error.reason), {})
        if error.bundle in waiting:
            found[number] = waiting.pop(error.bundle)
    for number, error in sorted(enumerate(errors), key=lambda pair: pair[1].item[0]):
        waiting = bundles.get((error.session_id, error.reason), {})
        if number not in found and waiting:
            found[number] = waiting.pop(next(iter(waiting)))
    return [
        _exception(error, *found.get(number, (error.reason, error.context)))
        for number, error in enumerate(errors)
    ]


def _exception(error: OutOfMemoryEvent, type_: str, message: str) -> dict[str, Any]:
    attributes = {"exception.type": type_, "exception.message": message}
    return {"name": "exception", "time_ns": error.item[0], "attributes": attributes}


def _described(artifact: Artifact) -> tuple[tuple[str, str], tuple[str, str] | None]:
    """Return a bundle's session and reason, and the exception's type and message."""
    for path in artifact.attachments:
        if path.name != _METADATA:
            continue
        try:
            metadata = parse_record(read_regular(path, _MAX_BYTES)).data or {}
        except InputError:
            break
        name, module = metadata.get("exception_type"), metadata.get("exception_module")
        message = metadata.get("exception_message")
        if isinstance(name, str) and isinstance(message, str):
            is_qualified = isinstance(module, str) and module not in ("", "builtins")
            key = (str(metadata.get("session_id")), str(metadata.get("reason")))
            return key, (f"{module}.{name}" if is_qualified else name, message)
    return ("", ""), None
