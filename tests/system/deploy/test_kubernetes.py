"""deploy/kubernetes, without a cluster: against Kubernetes' schema, and by running the programs."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from cirron_otel.collector.service.config_file import load_options
from tests.kit.backends.build import binary
from tests.project.test_packaging import dockerfile

from .kubernetes_schema import KINDS, SCHEMA

ROOT = Path(__file__).parents[3]
MANIFESTS = ROOT / "deploy" / "kubernetes"
COMMAND = Path(sys.executable).with_name("cirron-otel")
USER = 10001
DATABASE = "DATABASE_URL", "postgresql://cirron@database/cirron"


@cache
def objects() -> dict[tuple[str, str], dict[str, Any]]:
    """All objects, by kind and name."""
    loaded = [
        each
        for file in sorted(MANIFESTS.glob("*.yaml"))
        for each in yaml.safe_load_all(file.read_text())
    ]
    named = {(each["kind"], each["metadata"]["name"]): each for each in loaded}
    assert len(named) == len(loaded)
    return named


WORKLOADS = [key for key in objects() if key[0] in ("StatefulSet", "DaemonSet")]
COLLECTOR = ("StatefulSet", "cirron-otel-collector")
AGENT = ("DaemonSet", "cirron-otel-agent")


@cache
def schema() -> Any:
    return json.loads(SCHEMA.read_text())


def problems(value: dict[str, Any]) -> list[str]:
    """The errors of an object against the definition of its kind."""
    reference = f"#/$defs/{KINDS[value['apiVersion'], value['kind']]}"
    validator = jsonschema.Draft202012Validator(schema() | {"$ref": reference})
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def pod(key: tuple[str, str]) -> dict[str, Any]:
    template: dict[str, Any] = objects()[key]["spec"]["template"]
    return template


def container(key: tuple[str, str]) -> dict[str, Any]:
    [only] = pod(key)["spec"]["containers"]
    return dict(only)


def environment(key: tuple[str, str]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(key)["env"] if "value" in each}


def config(name: str, file: str) -> str:
    return str(objects()["ConfigMap", name]["data"][file])


@pytest.mark.parametrize("key", objects(), ids=" ".join)
def test_every_object_is_valid(key: tuple[str, str]) -> None:
    assert problems(objects()[key]) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "replica"), 3),
        (("spec", "replicas"), "three"),
        (
            ("spec", "template", "spec", "containers", 0, "readinessProbe", "httpGet", "prot"),
            "http",
        ),
        (("spec", "template", "spec", "securityContext", "runAsNonRoot"), "yes"),
        (("spec", "volumeClaimTemplates", 0, "spec", "resources", "requests"), "20Gi"),
    ],
)
def test_a_mistake_would_show(path: tuple[Any, ...], value: Any) -> None:
    broken = copy.deepcopy(objects()[COLLECTOR])
    place: Any = broken
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert problems(broken)


@pytest.mark.parametrize("key", WORKLOADS, ids=" ".join)
def test_labels_and_ports_match(key: tuple[str, str]) -> None:
    labels = pod(key)["metadata"]["labels"]
    assert objects()[key]["spec"]["selector"]["matchLabels"] == labels
    ports = {each["name"] for each in container(key)["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container(key)[probe]["httpGet"]["port"] in ports
    for (kind, name), value in objects().items():
        if name != key[1]:
            continue
        if kind == "Service":
            assert value["spec"]["selector"] == labels
            assert {each["targetPort"] for each in value["spec"]["ports"]} <= ports
        if kind == "NetworkPolicy":
            assert value["spec"]["podSelector"]["matchLabels"] == labels
            for rule in value["spec"]["ingress"]:
                assert {each["port"] for each in rule["ports"]} <= ports
        if kind == "PodDisruptionBudget":
            assert value["spec"]["selector"]["matchLabels"] == labels
    assert objects()[COLLECTOR]["spec"]["serviceName"] == COLLECTOR[1]


@pytest.mark.parametrize("key", WORKLOADS, ids=" ".join)
def test_every_container_is_confined(key: tuple[str, str]) -> None:
    spec = pod(key)["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == USER
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in spec["containers"] + spec.get("initContainers", []):
        security = each["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"]["drop"] == ["ALL"]
        assert "memory" in each["resources"]["limits"]
        assert re.search(r":v?\d+\.\d+\.\d+$", each["image"])
    for each in spec["containers"]:
        assert "add" not in each["securityContext"]["capabilities"]
        assert "runAsUser" not in each["securityContext"]
        assert "memory" in each["resources"]["requests"]
    for each in spec.get("initContainers", []):  # it gives the node's directory to the user
        assert each["securityContext"]["capabilities"]["add"] == ["CHOWN"]
        assert each["command"][:2] == ["chown", f"{USER}:{USER}"]
    assert " ".join(a for i, a in dockerfile() if i == "USER") == f"{USER}:{USER}"


@pytest.mark.parametrize("key", WORKLOADS, ids=" ".join)
def test_every_volume_is_there_and_mounted(key: tuple[str, str]) -> None:
    spec = pod(key)["spec"]
    claims = objects()[key]["spec"].get("volumeClaimTemplates", [])
    volumes = {each["name"] for each in spec["volumes"]} | {c["metadata"]["name"] for c in claims}
    mounts = {m["name"] for c in spec["containers"] for m in c["volumeMounts"]}
    assert mounts == volumes
    for each in spec["volumes"]:
        if "configMap" in each:
            assert ("ConfigMap", each["configMap"]["name"]) in objects()


class TestTheCollector:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "collector.yaml"
        path.write_text(config(COLLECTOR[1], path.name))
        return path

    def test_it_takes_its_command_and_its_file(self, file: Path) -> None:
        arguments = container(COLLECTOR)["args"]
        [mount] = [m for m in container(COLLECTOR)["volumeMounts"] if m["name"] == "config"]
        words = [word.replace(mount["mountPath"], str(file.parent)) for word in arguments]
        done = subprocess.run(
            [COMMAND, *words, "--check=offline", "--json"],
            env=os.environ | dict([DATABASE]),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        warnings = json.loads(done.stdout)["warnings"]
        # Both ports are open without a token, to the namespace (NetworkPolicy).
        assert len(warnings) == 2
        assert all("token" in warning for warning in warnings)

    def test_its_settings_fit_the_pod(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(*DATABASE)
        options = load_options(file, {}).options
        spec = pod(COLLECTOR)["spec"]
        assert options.drain_s < spec["terminationGracePeriodSeconds"]
        ports = {each["name"]: each["containerPort"] for each in container(COLLECTOR)["ports"]}
        addresses = {
            "grpc": options.receivers.grpc.address,
            "http": options.receivers.http.address,
            "health": options.health.address,
        }
        assert {name: str(address) for name, address in addresses.items()} == {
            name: f"0.0.0.0:{port}" for name, port in ports.items()
        }
        [claim] = objects()[COLLECTOR]["spec"]["volumeClaimTemplates"]
        size = int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) * 2**30
        assert options.spool.max_bytes < 0.8 * size
        places = {m["name"]: m["mountPath"] for m in container(COLLECTOR)["volumeMounts"]}
        assert str(options.spool.directory) == places["data"]
        assert options.health.enabled

    def test_it_gets_the_variables_that_the_file_has(self) -> None:
        taken = set(re.findall(r"\$\{env:(\w+)", config(COLLECTOR[1], "collector.yaml")))
        assert {e["name"] for e in container(COLLECTOR)["env"]} == taken | {"PGPASSWORD"}

    def test_its_probes_are_the_documented_ones(self) -> None:
        documented = (ROOT / "docs" / "collector.md").read_text()
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            path = container(COLLECTOR)[probe]["httpGet"]["path"]
            assert container(COLLECTOR)[probe]["httpGet"]["port"] == "health"
            assert f"| `GET {path}` | 200" in documented


class TestTheAgent:
    def test_agent_configuration_equals_the_file_in_collector_config(self) -> None:
        original = (ROOT / "collector-config" / "agent.yaml").read_text()
        assert config(AGENT[1], "agent.yaml") == original

    def test_it_gets_variables_that_the_file_has(self) -> None:
        taken = set(re.findall(r"\$\{env:(\w+)", config(AGENT[1], "agent.yaml")))
        assert environment(AGENT).keys() - {"GOMEMLIMIT"} <= taken

    def test_its_addresses_are_its_ports(self) -> None:
        variables = environment(AGENT)
        ports = {each["name"]: each["containerPort"] for each in container(AGENT)["ports"]}
        for name, variable in (("grpc", "OTLP_GRPC"), ("http", "OTLP_HTTP"), ("health", "HEALTH")):
            assert variables[variable] == f"0.0.0.0:{ports[name]}"
        service = objects()["Service", COLLECTOR[1]]
        name, port = service["metadata"]["name"], service["spec"]["ports"][0]["port"]
        assert variables["COLLECTOR"] == f"dns:///{name}:{port}"
        assert service["spec"]["clusterIP"] == "None"

    def test_it_is_reachable_on_its_node_only(self) -> None:
        for each in container(AGENT)["ports"]:
            assert each.get("hostPort") is None or each["hostIP"] == "127.0.0.1"
        service = objects()["Service", AGENT[1]]["spec"]
        assert service["internalTrafficPolicy"] == "Local"
        recipe = (ROOT / "docs" / "recipes" / "kubernetes.md").read_text()
        port = service["ports"][0]["port"]
        assert f'"http://{AGENT[1]}.cirron-otel:{port}"' in recipe

    def test_its_queue_is_on_the_node(self) -> None:
        variables = environment(AGENT)
        [queue] = [m for m in container(AGENT)["volumeMounts"] if m["name"] == "queue"]
        assert variables["DIR"] == queue["mountPath"]

    def test_its_memory_fits_the_pod(self) -> None:
        limit = int(container(AGENT)["resources"]["limits"]["memory"].removesuffix("Mi"))
        variables = environment(AGENT)
        assert int(variables["MEMORY_MIB"]) < int(variables["GOMEMLIMIT"][:-3]) < limit

    @pytest.mark.backends
    def test_otelcol_takes_it(self, tmp_path: Path) -> None:
        path = tmp_path / "agent.yaml"
        path.write_text(config(AGENT[1], path.name))
        done = subprocess.run(
            [binary("otelcol"), "validate", f"--config={path}"],
            env=os.environ | environment(AGENT) | {"DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
