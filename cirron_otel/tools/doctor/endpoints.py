"""The endpoints that batches are sent to, and the checks of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..._version import SDK_VERSION
from ...core.config.exporters import Export, exports_of
from ...core.config.options import Config
from ...core.targets.cirron.batches import CirronTarget
from ...core.targets.otlp.config import OtlpConfig, default_service_name, target_key
from ...errors import CirronOtelError
from .check import Check, ok
from .otlp import OtlpRequest, examine_otlp
from .platform import examine_platform
from .search import examine_search
from .spool import examine_spool

__all__ = ["examine_endpoints", "examine_spool", "keys_of"]


def examine_endpoints(
    config: Config, environ: Mapping[str, str], timeout: float, *, is_sent: bool
) -> Iterator[Check]:
    """Yield the checks of each endpoint; `timeout`, in seconds, is for each of them."""
    targets = exports_of(config, environ).targets
    if not targets:
        yield ok(
            "endpoint",
            f"none is set: only the spool is written, {config.output_dir}"
            " (OTEL_EXPORTER_OTLP_ENDPOINT sends it as well)",
        )
    if Export.OTLP in targets:
        service = default_service_name(environ)
        yield from examine_otlp(OtlpRequest(environ, timeout, is_sent, service))
        yield from examine_search(config.output_dir, environ)
    if Export.EVENT_STREAM in targets:
        yield ok("cirron", "in a run of the platform: batches go to standard output, as events")
    elif Export.CIRRON_HTTP in targets:
        yield from examine_platform(config, timeout, is_sent=is_sent)


def keys_of(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the ledger key of each valid target by the name that messages show for it."""
    keys: dict[str, str] = {}
    for export in exports_of(config, environ).targets:
        try:
            if export is Export.OTLP:
                otlp = OtlpConfig.from_env(environ)
                keys[otlp.shown_endpoint] = target_key(otlp)
            elif export is Export.CIRRON_HTTP:
                place = config.api_endpoint, config.ingest_path, config.api_key or ""
                target = CirronTarget(*place, SDK_VERSION)
                keys[target.shown] = target.key
        except CirronOtelError:
            continue  # the endpoint's own checks report it
    return keys
