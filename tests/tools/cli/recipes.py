"""Check the results of the documentation's recipes after their blocks have run."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from tests.kit.servers.server import OtlpServer
from tests.tools.conftest import environment

PROGRAMS: Final = Path(__file__).with_name("slurm")
"""Replacements for `sbatch` and `srun`, which are not installed for tests."""
NAMED_ENDPOINT: Final = re.compile(
    r"https?://(?:localhost:4318|otlp-gateway-[\w-]+\.grafana\.net|api\.honeycomb\.io)(?![\w.:])"
)
"""The endpoints in the documentation that a test's server replaces."""


def batches(directory: Path) -> list[dict[str, Any]]:
    """Return the batches of a spool."""
    return [json.loads(file.read_bytes()) for file in sorted(directory.glob("spool/*.json"))]


def sessions(directory: Path) -> dict[int, dict[str, Any]]:
    """Return the resource attributes of each rank's session, with its trace id as `trace_id`."""
    found = {}
    for batch in batches(directory):
        for span in batch["spans"]:
            if span["name"] == "cirron.session" and span["rank"] is not None:
                attributes = batch["otel"]["resource"]["attributes"]
                assert span["rank"] not in found
                trace = span.get("otel", {}).get("trace_id") or batch["otel"].get("trace_id")
                found[span["rank"]] = {**attributes, "trace_id": trace or span["id"]}
    return found


def _grafana_cloud(_: Path, server: OtlpServer) -> None:
    words = server.headers[-1]["authorization"].split()
    assert words[0] == "Basic"
    assert base64.b64decode(words[1]) == b"123456:glc_of-your-own"


def _honeycomb(_: Path, server: OtlpServer) -> None:
    assert server.headers[-1]["x-honeycomb-team"] == "your-key"
    assert server.headers[-1]["content-encoding"] == "gzip"


def _tempo(_: Path, server: OtlpServer) -> None:
    assert server.headers[-1]["x-scope-orgid"] == "research"


def _jaeger(_: Path, server: OtlpServer) -> None:
    resource = server.requests[-1].resource_spans[0].resource
    names = {a.key: a.value.string_value for a in resource.attributes}
    assert names["service.name"] == "resnet"


def _slurm(directory: Path, _: OtlpServer) -> None:
    found = sessions(directory / "cirron-4711")
    assert set(found) == {0, 1, 2, 3}
    assert {each["cirron.world_size"] for each in found.values()} == {4}
    assert [found[rank]["cirron.node_rank"] for rank in range(4)] == [0, 0, 1, 1]
    assert {each["cirron.job.id"] for each in found.values()} == {"4711"}
    assert {each["service.name"] for each in found.values()} == {"train"}
    assert len({each["trace_id"] for each in found.values()}) == 1


def _torchrun(directory: Path, _: OtlpServer) -> None:
    by_trace: dict[str, set[int]] = {}
    for batch in batches(directory / ".cirron"):
        for span in batch["spans"]:
            if span["name"] == "cirron.session" and span["rank"] is not None:
                trace = span.get("otel", {}).get("trace_id") or batch["otel"].get("trace_id")
                by_trace.setdefault(trace or span["id"], set()).add(span["rank"])
    assert sorted(map(sorted, by_trace.values())) == [[0], [0, 1], [1]]


def _kubernetes(directory: Path, server: OtlpServer) -> None:
    """Run the manifest's container here, once for each index, as Kubernetes would start it."""
    job = yaml.safe_load((directory / "job.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert job["spec"]["completionMode"] == "Indexed"
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert {each["name"] for each in container["volumeMounts"]} == {
        each["name"] for each in pod["volumes"]
    }
    size = job["spec"]["completions"]
    for index in range(size):
        fields = {"metadata.name": f"train-{index}-x7k2p",
                  "metadata.namespace": "research"}  # fmt: skip
        given = _variables(container["env"], fields)
        assert given["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://cirron-otel-agent.cirron-otel:4317"
        given |= server.environ | {"CIRRON_OUTPUT_DIR": str(directory / "traces")}
        given["JOB_COMPLETION_INDEX"] = str(index)
        subprocess.run(
            container["command"],
            cwd=directory,
            check=True,
            timeout=180,
            env=environment(CIRRON_EXIT_TIMEOUT="60", **given),
        )
    found = sessions(directory / "traces")
    assert set(found) == set(range(size))
    assert {each["cirron.world_size"] for each in found.values()} == {size}
    assert {each["cirron.job.id"] for each in found.values()} == {"train"}
    assert found[1]["k8s.pod.name"] == "train-1-x7k2p"
    assert len(server.requests) >= size
    secret = yaml.safe_load((directory / "secret-env.yaml").read_text())
    assert [each["name"] for each in secret] == ["OTEL_EXPORTER_OTLP_HEADERS"]


def _variables(listed: list[dict[str, Any]], fields: dict[str, str]) -> dict[str, str]:
    """Return a container's variables.

    `$(NAME)` is replaced by the value of an earlier variable; without one it stays unchanged.
    """
    found: dict[str, str] = {}
    for each in listed:
        value = each.get("value") or fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda m: found.get(m[1], m[0]), value)
    return found


CHECKS: Final[dict[str, Callable[[Path, OtlpServer], None]]] = {
    "recipes/grafana-cloud.md": _grafana_cloud,
    "recipes/honeycomb.md": _honeycomb,
    "recipes/jaeger.md": _jaeger,
    "recipes/kubernetes.md": _kubernetes,
    "recipes/slurm.md": _slurm,
    "recipes/tempo.md": _tempo,
    "recipes/torchrun.md": _torchrun,
}
"""The check of each page by its name below docs/. Its arguments are the directory that the blocks
ran in, and the server that they sent to."""
