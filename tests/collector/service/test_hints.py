"""What an exporter of the collector says of its troubles names keys of the configuration."""

from __future__ import annotations

import time
from pathlib import Path

from tests.kit.servers.serving import serving

from .test_handing_on import configuration
from .test_running import post, request


def test_messages_name_the_keys_of_the_file(tmp_path: Path) -> None:
    guarded = tmp_path / "guarded.yaml"
    guarded.write_text("receivers: {auth: {tokens: [sesame]}}\n")
    with serving(tmp_path / "behind", "--config", str(guarded)) as behind:
        config = configuration(
            tmp_path,
            f"{{type: otlp, endpoint: 'http://{behind.grpc}'}}",
            f"{{type: otlp, endpoint: '{behind.http}', protocol: http/protobuf}}",
            f"{{type: cirron, endpoint: '{behind.http}', api_key: wrong-key}}",
            f"{{type: cirron, endpoint: '{behind.http}', ingest_path: /nowhere, api_key: sesame}}",
        )
        wanted = (
            "check exporters[0].headers",
            "check exporters[1].headers",
            "check exporters[2].api_key",
            "check exporters[3].endpoint and exporters[3].ingest_path",
        )
        with serving(tmp_path / "data", "--config", config) as here:
            assert post(f"{here.http}/v1/traces", request(), "application/x-protobuf")[0] == 200
            deadline = time.monotonic() + 180.0
            while missing := [each for each in wanted if each not in here.log.read_text()]:
                assert time.monotonic() < deadline, (missing, here.log.read_text())
                time.sleep(0.05)
            here.kill()
    log = here.log.read_text()
    assert "OTEL_" not in log
    assert "CIRRON_" not in log
    assert "wrong-key" not in log
