"""Pushes over OTLP/HTTP, as the tests make them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cirron_otel.core.delivery.errors import PushResult
from cirron_otel.core.delivery.retry_policy import Backoff
from cirron_otel.core.targets.otlp.config import OtlpConfig, OtlpProtocol
from cirron_otel.core.targets.otlp.pusher import Pusher
from tests.kit.servers.servers import HttpReceiver

QUICK = Backoff(first=0.01, longest=0.02)


def config_for(server: HttpReceiver, **changes: Any) -> OtlpConfig:
    config = OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, server.url, timeout=20)
    return replace(config, **changes)


def push(server: HttpReceiver, request: bytes, options: Any = None, **changes: Any) -> PushResult:
    with Pusher(config_for(server, **changes), backoff=QUICK, **(options or {})) as pusher:
        return pusher.push(request)
