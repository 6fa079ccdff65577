"""Try the directories and targets of a configuration, without changing them (`--check`)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from ...core.http.client import HttpClient
from ...core.targets.objects import open_store
from ...core.targets.otlp.pusher import transport_for
from ...core.targets.otlp.transport import Outcome, cause_of
from ...core.targets.sql.database import current, version_of
from ...core.targets.sql.storage import connect
from ...core.targets.sql.url import parse_url
from ...errors import CirronOtelError, EndpointError, InputError, TargetError, UsageError
from .exporter_options import CirronExporter, OtlpExporter
from .options import CollectorOptions
from .targets import api_key, otlp_config

_LONGEST_S: Final = 20.0
"""The longest time for all attempts, which are concurrent, seconds."""
_DENIED: Final = (401, 403)
_NEEDS_HEADERS: Final = ("401", "403", "UNAUTHENTICATED", "PERMISSION_DENIED")
"""The beginnings of the statuses of an endpoint that may lack the header of a tenant."""
_EMPTY_IS_INVALID: Final = ("400", "INVALID_ARGUMENT")
"""The beginnings of the statuses of an endpoint that accepts the client, but no empty request."""

_DATABASE: Final = "storage.url"

_Check = tuple[str, Callable[[], str | None]]
"""The path of a key, and a function that raises CirronOtelError if its target cannot be used.

The function may return a warning.
"""


class Tried(NamedTuple):
    """The result of an attempt to use all targets."""

    errors: list[CirronOtelError]
    """An error for each target that cannot be used."""
    warnings: list[str]


def try_targets(options: CollectorOptions, longest_s: float = _LONGEST_S) -> Tried:
    """Try all targets concurrently."""
    checks = list(_checks(options))
    errors: list[CirronOtelError | None] = [
        _kind(key)(f"{key}: no answer within {longest_s:g} s") for key, _ in checks
    ]
    warnings: list[str | None] = [None] * len(checks)

    def run(position: int) -> None:
        key, check = checks[position]
        try:
            warning = check()
        except CirronOtelError as error:
            errors[position] = _kind(key, error)(f"{key}: {error}")
        except (OSError, ValueError) as error:
            errors[position] = _kind(key)(f"{key}: {cause_of(error)}")
        else:
            errors[position] = None
            warnings[position] = warning

    threads = [threading.Thread(target=run, args=(at,), daemon=True) for at in range(len(checks))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + longest_s
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
    return Tried(
        [error for error in list(errors) if error is not None],
        [warning for warning in list(warnings) if warning is not None],
    )


def _kind(key: str, error: CirronOtelError | None = None) -> type[CirronOtelError]:
    """Return the type of the error to report for a key."""
    if isinstance(error, UsageError):  # for example, a library is not installed
        return UsageError
    is_place = key == _DATABASE or isinstance(error, TargetError | InputError)
    return TargetError if is_place else EndpointError


def _checks(options: CollectorOptions) -> Iterator[_Check]:
    yield "spool.directory", partial(_writable, options.spool.directory)
    if (url := options.storage.url) is not None:
        yield _DATABASE, partial(_database, url.reveal())
    for key, place in (("blobs.url", options.blobs.url), ("parquet.url", options.parquet.url)):
        if place is not None:
            yield key, partial(_store, place)
    for at, exporter in enumerate(options.exporters):
        path = f"exporters[{at}]"
        if isinstance(exporter, OtlpExporter):
            yield path, partial(_otlp, exporter, path)
        else:
            yield path, partial(_cirron, exporter)


def _writable(path: Path) -> None:
    """Raise TargetError if a directory cannot be written or created."""
    nearest = path.absolute()
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise TargetError(f"{nearest} is not a directory: expected one")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise TargetError(f"{nearest} cannot be written by this user: change its permissions")


def _database(url: str) -> None:
    location = parse_url(url)
    if location.path is not None and not location.path.exists():
        _writable(location.path.parent)
        return
    database = connect(location, create=False)
    try:
        version = version_of(database)
    finally:
        database.close()
    if version > current(database.dialect):
        raise TargetError(
            f"{location.shown} has tables of version {version}, but this release supports only"
            f" {current(database.dialect)}: use a newer release"
        )


def _store(url: str) -> None:
    store = open_store(url)
    if store.place.path is not None:
        _writable(store.place.path)
    else:
        store.head("check")


def _otlp(exporter: OtlpExporter, path: str) -> str | None:
    """Send an empty request, which changes nothing. Returns a warning, or None.

    The request has no header of a client, such as the tenant, so its refusal proves nothing if the
    exporter forwards some.
    """
    config = otlp_config(exporter, path)
    transport = transport_for(config)
    try:
        response = transport.send(b"", exporter.timeout_s)
    finally:
        transport.close()
    if response.outcome is Outcome.ACCEPTED or response.status.startswith(_EMPTY_IS_INVALID):
        return None
    message = f" ({response.message})" if response.message else ""
    if exporter.headers_from and response.status.startswith(_NEEDS_HEADERS):
        return (
            f"{path}: {config.shown_endpoint} answered {response.status}{message} to a request"
            f" without {', '.join(exporter.headers_from)}: whether it accepts requests with them"
            " was not checked"
        )
    raise EndpointError(f"{config.shown_endpoint} did not accept: {response.status}{message}")


def _cirron(exporter: CirronExporter) -> None:
    """Ask for a snapshot file that does not exist."""
    client = HttpClient(
        exporter.endpoint, certificate=None if exporter.ca is None else str(exporter.ca)
    )
    path = f"{exporter.ingest_path.rstrip('/')}/blobs/snapshots/{'0' * 32}/check"
    headers = {"Authorization": f"Bearer {api_key(exporter)}"}
    try:
        answer = client.request("HEAD", path, headers, None, timeout=exporter.timeout_s)
    except OSError as error:
        raise EndpointError(f"{exporter.endpoint}: no answer ({cause_of(error)})") from None
    finally:
        client.close()
    if answer.status in _DENIED:
        raise EndpointError(f"{exporter.endpoint} did not accept: {answer.status}; check api_key")
