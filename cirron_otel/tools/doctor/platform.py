"""Check the Cirron platform, or a compatible server: network, protocol, and one span.

docs/cirron-http.md specifies the API.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from ..._version import SDK_VERSION
from ...core.config.options import Config
from ...core.delivery.batch_target import SealedBatch
from ...core.delivery.errors import PushError
from ...core.http.client import BrokenAnswerError, HttpClient
from ...core.records.schema import SCHEMA_VERSION
from ...core.spool.paths import file_name
from ...core.targets.cirron.batches import CirronTarget
from ...core.targets.otlp.transport import USER_AGENT
from ...errors import CirronOtelError
from ...ids import uuid4_shaped
from ...semconv import COSTS
from .check import Check, Deadline, Problem, failed, ok, unreachable, warning, within
from .network import (
    EndpointAddress,
    EndpointSettings,
    certificate_check,
    check_connection,
    proxy_of,
)
from .otlp import SPAN_NAME
from .protocol import ExpectedProtocol, find_protocol, skew_check

_WORDS = EndpointSettings("CIRRON_API_ENDPOINT", "SSL_CERT_FILE")


def examine_platform(config: Config, timeout: float, *, is_sent: bool) -> Iterator[Check]:
    """Yield the checks in order, up to the first failure that makes the remaining checks
    impossible.
    """
    try:
        target = CirronTarget(
            config.api_endpoint,
            config.ingest_path,
            config.api_key or "",
            SDK_VERSION,
            timeout=timeout,
        )
    except CirronOtelError as error:
        yield failed("cirron settings", str(error), "correct it")
        return
    yield ok("cirron settings", f"POST {target.shown}, with an API key (not shown)")
    url = urlsplit(config.api_endpoint)
    deadline = Deadline(timeout)
    is_tls = url.scheme == "https"
    place = EndpointAddress(url.hostname or "", url.port or (443 if is_tls else 80), is_tls, _WORDS)
    proxy = proxy_of(url.scheme, url.netloc)
    if proxy is not None:
        yield ok(
            "cirron proxy", f"connections to {place.shown} go through the proxy {proxy.hostname}"
        )
    else:
        checks, is_there = _check_route(place, deadline)
        yield from checks
        if not is_there:
            return
    if is_sent:
        yield _send_span(target, deadline)
    else:
        yield _check_key(config, deadline)
    target.close()


def _check_route(place: EndpointAddress, deadline: Deadline) -> tuple[list[Check], bool]:
    checks, line = check_connection("cirron", place, deadline)
    if line is None:
        return checks, False
    step = "cirron tls" if place.is_tls else "cirron protocol"
    try:
        if place.is_tls:
            with line.open() as sock:
                checks.append(certificate_check("cirron tls", sock))
            step = "cirron protocol"
        heard = find_protocol(line, ExpectedProtocol(False, "CIRRON_API_ENDPOINT", _WORDS.endpoint))
    except Problem as problem:
        return [*checks, unreachable(step, problem)], False
    finding = f"{place.shown} speaks HTTP/1.1"
    if heard.is_ours:
        finding += "; it is a cirron-otel collector"
    checks.append(ok("cirron protocol", finding, is_our_collector=heard.is_ours))
    return [*checks, *skew_check("cirron clock", heard)], True


def _send_span(target: CirronTarget, deadline: Deadline) -> Check:
    """Send a batch of one span, and report the answer."""
    batch, span = _batch()
    begun = time.monotonic()
    try:
        within(deadline.left() + 1, lambda: target.send([batch]))
    except TimeoutError:
        return unreachable("cirron span", Problem("no answer in time", "try a longer --timeout"))
    except PushError as error:
        return unreachable("cirron span", Problem(*_split_message(str(error))))
    took = 1000 * (time.monotonic() - begun)
    return ok(
        "cirron span", f"accepted in {took:.0f} ms; look for the span {span}", span_id=span,
        took_ms=round(took, 1),
    )  # fmt: skip


def _check_key(config: Config, deadline: Deadline) -> Check:
    """Check the API key with a request for a snapshot file that does not exist."""
    name, seconds = "cirron request", deadline.left()
    file = f"{config.ingest_path.rstrip('/')}/blobs/snapshots/{os.urandom(16).hex()}/none"
    headers = {"Authorization": f"Bearer {config.api_key}", "User-Agent": USER_AGENT}
    client = HttpClient(config.api_endpoint)
    try:
        answer = within(seconds + 1, lambda: client.request("HEAD", file, headers, timeout=seconds))
    except TimeoutError:
        return unreachable(name, Problem("no answer in time", "try a longer --timeout"))
    except (OSError, BrokenAnswerError, CirronOtelError) as error:
        return unreachable(name, Problem(f"no answer: {error}", "check CIRRON_API_ENDPOINT"))
    finally:
        client.close()
    status = answer.status
    if status in (401, 403):
        return unreachable(name, Problem(f"access denied: {status}", "check CIRRON_API_KEY"))
    if status >= 500 and status != 501:
        return warning(name, f"it answers {status}", "check its log", status=status)
    return ok(name, f"it answers ({status}); no span was sent", status=status)


def _split_message(message: str) -> tuple[str, str]:
    """Split an error's message into the finding and the remedy."""
    finding, _, advice = message.partition("; ")
    return finding, advice


def _batch() -> tuple[SealedBatch, str]:
    now, session = time.time_ns(), os.urandom(16).hex()
    batch_id = uuid4_shaped(os.urandom(16))
    span: dict[str, Any] = {
        "id": session,
        "parent_id": None,
        "name": SPAN_NAME,
        "index": None,
        "attrs": {},
        "start_ns": now,
        "end_ns": now + 1_000_000,
        **dict.fromkeys(field for _, field in COSTS),
        "thread_id": None,
        "rank": 0,
        "pid": os.getpid(),
        "mark_ids": [],
    }
    batch = {
        "schema_version": SCHEMA_VERSION,
        "sdk_version": SDK_VERSION,
        "batch_id": batch_id,
        "created_ns": now,
        "spans": [span],
        "marks": [],
        "snapshots": [],
    }
    data = json.dumps(batch).encode()
    return SealedBatch(file_name(now, batch_id), data), session
