"""What tells one OTLP target from another, for cursors and leases."""

from __future__ import annotations

import re

import pytest

from cirron_otel.core.targets.otlp.config import OtlpConfig, target_key

BASE = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "https://me:old@host:4318",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=old,X-Scope-OrgID=us",
}


def key(**changes: str) -> str:
    more = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in changes.items()}
    return target_key(OtlpConfig.from_env(BASE | more))


@pytest.mark.parametrize(
    ("name", "value", "same"),
    [
        ("ENDPOINT", "https://me:new@host:4318", True),
        ("ENDPOINT", "https://host:4318", True),
        ("HEADERS", "authorization=new,x-scope-orgid=us", True),
        ("TIMEOUT", "3", True),
        ("COMPRESSION", "gzip", True),
        ("CERTIFICATE", "ca.pem", True),
        ("HEADERS", "authorization=old,x-scope-orgid=them", False),
        ("HEADERS", "authorization=old", False),
        ("ENDPOINT", "https://host:4319", False),
        ("ENDPOINT", "http://host:4318", False),
        ("ENDPOINT", "https://host:4318/base@x", False),
        ("PROTOCOL", "http/json", False),
    ],
)
def test_target_key_depends_on_endpoint_protocol_and_tenant(
    name: str, value: str, same: bool
) -> None:
    assert (key(**{name: value}) == key()) is same


def test_it_is_the_same_tomorrow_and_holds_no_secret() -> None:
    """Cursors on disk are found by it."""
    assert key() == "1548702293a89e51"
    assert re.fullmatch("[0-9a-f]{16}", key())
    grpc = target_key(OtlpConfig(endpoint="user:secret@host:4317"))
    assert grpc == target_key(OtlpConfig(endpoint="host:4317"))
