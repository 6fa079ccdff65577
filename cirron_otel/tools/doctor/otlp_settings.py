"""Check the variables of the OTLP endpoint for values that are probably not intended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from ...core.targets.otlp.config import ENVIRONMENT_PREFIX, OtlpConfig, OtlpProtocol, parse_headers
from .check import Check, failed, listed, ok, warning

TRACES_PATH = "/v1/traces"
"""The path at which receivers accept traces over HTTP, by default."""

_GRPC_PORT = 4317
_SCHEMES = ("basic ", "bearer ", "token ", "digest ", "apikey ", "api-key ", "aws4-", "negotiate ")
_CREDENTIALS = ("authorization", "api-key", "x-api-key", "token", "x-honeycomb-team")


def variable(environ: Mapping[str, str], name: str) -> str:
    """Return the name of the effective variable, the `_TRACES_` variable if it is set."""
    traces = f"{ENVIRONMENT_PREFIX}TRACES_{name}"
    return traces if environ.get(traces) else f"{ENVIRONMENT_PREFIX}{name}"


def is_grpc(config: OtlpConfig) -> bool:
    """Return whether the endpoint is accessed through gRPC."""
    return config.protocol is OtlpProtocol.GRPC


def settings_check(config: OtlpConfig, environ: Mapping[str, str]) -> Check:
    """Check the endpoint, and whether its path and port are plausible."""
    name = variable(environ, "ENDPOINT")
    is_set = bool(environ.get(name))
    where = f"{config.protocol} to {config.shown_endpoint}"
    finding = f"{where} ({name if is_set else 'the default'})"
    problems = [each for each in config.warnings if "HEADERS" not in each]
    text = environ.get(name, "")
    if text[:1] in ("'", '"') or text != text.strip():
        problems.append(f"{name} has quotes or spaces around it")
    advice = "see docs/configuration.md"
    if odd := _odd_path(config, name, text):
        problems.append(odd[0])
        advice = odd[1]
    details = {
        "endpoint": config.shown_endpoint,
        "protocol": str(config.protocol),
        "compression": str(config.compression),
        "timeout_s": config.timeout,
    }
    if problems:
        return warning("otlp settings", f"{finding}: {'; '.join(problems)}", advice, **details)
    return ok("otlp settings", finding, **details)


def _odd_path(config: OtlpConfig, name: str, given: str) -> tuple[str, str] | None:
    path = urlsplit(given).path if given.startswith(("http://", "https://")) else ""
    if is_grpc(config):
        if path.strip("/"):
            return f"gRPC does not use its path {path}", "omit the path, or set " + (
                f"{ENVIRONMENT_PREFIX}PROTOCOL=http/protobuf"
            )
        if ":" not in config.endpoint:
            return "without a port, gRPC uses 443", f"specify the port, usually {_GRPC_PORT}"
        return None
    whole = urlsplit(config.endpoint).path
    if whole.endswith(TRACES_PATH * 2) or f"{TRACES_PATH}/v1/" in whole:
        return (
            f"its path is {whole}: {TRACES_PATH} is doubled",
            f"omit it in {name}: it is appended automatically",
        )
    if "TRACES" in name and not whole.rstrip("/").endswith(TRACES_PATH):
        return (
            f"its path is {whole or '/'}, and {name} is used unchanged",
            f"most receivers expect a path that ends with {TRACES_PATH}",
        )
    return None


def headers_check(config: OtlpConfig, environ: Mapping[str, str]) -> Iterator[Check]:
    """Check the headers; their values are never shown."""
    name = variable(environ, "HEADERS")
    text = environ.get(name, "")
    if not text:
        return
    _, bad = parse_headers(text)
    names = sorted(filter(None, map(_shown_name, config.headers.items())))
    nameless = len(config.headers) - len(names)
    finding = f"{name} has {listed(names)}" if names else f"{name} has no valid header"
    if bad or nameless:
        colon = "; it is name=value, not name: value" if ":" in text.split("=")[0] else ""
        what = (
            f"{bad} of its entries ignored" if bad else f"{nameless} of its values without a name"
        )
        yield failed(
            "otlp headers",
            f"{finding}; {what}",
            f"expected name=value,name=value with the values URL-encoded (%20 for a space){colon}",
            names=names,
        )
        return
    problems = [each for each in map(_odd_header, config.headers.items()) if each]
    is_open = config.insecure and not _is_local(config)
    if is_open and any(each in _CREDENTIALS for each in names):
        problems.append("credentials are sent unencrypted")
    if problems:
        advice = "use https:// in the endpoint" if is_open else f"check {name}"
        yield warning("otlp headers", f"{finding}: {'; '.join(problems)}", advice, names=names)
    else:
        yield ok("otlp headers", f"{finding} (values not shown)", names=names)


def _shown_name(header: tuple[str, str]) -> str:
    """Return the name of a header; "" if it looks like a value, for example base64 that ends with
    `=`.
    """
    name, value = header
    is_name = value.strip("=") or (not value and (name in _CREDENTIALS or name.startswith("x-")))
    return name if is_name else ""


def _odd_header(header: tuple[str, str]) -> str:
    name, value = header
    if not value:
        return f"{name} is empty"
    if value[0] in "'\"" or "%20" in value:
        return f"{name} has quotes around it, or is encoded twice"
    if name == "authorization" and not value.lower().startswith(_SCHEMES):
        return "authorization does not begin with Basic, Bearer or another scheme"
    return ""


def _is_local(config: OtlpConfig) -> bool:
    place = config.shown_endpoint
    text = place.partition("://")[2] if "://" in place else place
    return text.startswith(("localhost", "127.", "[::1]", "unix:"))
