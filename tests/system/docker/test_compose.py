"""docker/compose.yaml, without a container engine: against the specification's schema, the files
that it mounts and the programs that it starts.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from cirron_otel.collector.service.config_file import load_options
from tests.kit.backends.build import binary

from .composed import DOCKER, document, services

COMMAND = Path(sys.executable).with_name("cirron-otel")
OWN = [name for name, service in services().items() if service.settings["image"] == "cirron-otel"]


@pytest.fixture(scope="module")
def schema() -> jsonschema.protocols.Validator:
    """The Compose specification's, as check-jsonschema ships it."""
    file = resources.files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    loaded = json.loads(file.read_text())
    return jsonschema.validators.validator_for(loaded)(loaded)


class TestTheFile:
    def test_conforms_to_the_specification(self, schema: jsonschema.protocols.Validator) -> None:
        assert [error.message for error in schema.iter_errors(document())] == []

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            (("services", "tempo", "comand"), ["x"]),
            (("services", "collector", "depends_on"), {"tempo": {"condition": "ready"}}),
            (("services", "collector", "healthcheck", "interval"), 5),
        ],
    )
    def test_invalid_documents_are_rejected(
        self, schema: jsonschema.protocols.Validator, path: tuple[str, ...], value: Any
    ) -> None:
        broken = copy.deepcopy(document())
        place = broken
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        assert not schema.is_valid(broken)

    def test_images_are_ours_or_of_a_stated_version(self) -> None:
        for service in services().values():
            image = service.settings["image"]
            if image == "cirron-otel":
                continue
            assert re.fullmatch(r"[a-z-]+/[a-z-]+:v?\d+\.\d+\.\d+", image), image

    def test_our_image_is_built_by_one_service(self) -> None:
        builds = [s.settings["build"] for s in services().values() if "build" in s.settings]
        assert builds == [{"context": "..", "dockerfile": "docker/Dockerfile"}]
        assert (DOCKER / ".." / "docker" / "Dockerfile").is_file()

    def test_mounted_files_exist(self) -> None:
        for service in services().values():
            for source in service.binds.values():
                assert source.is_file(), f"{service.name}: {source}"

    def test_every_file_beside_it_is_used(self) -> None:
        used = {source for service in services().values() for source in service.binds.values()}
        there = {path for path in DOCKER.rglob("*") if path.is_file()}
        others = {DOCKER / name for name in ("Dockerfile", "README.md", "compose.yaml")}
        assert there - used == others

    def test_volumes_are_declared_and_used(self) -> None:
        used = {name for service in services().values() for name in service.volumes.values()}
        assert used == set(document()["volumes"])

    def test_services_wait_for_others_that_exist_and_not_in_a_circle(self) -> None:
        waits = {name: set(s.settings.get("depends_on", {})) for name, s in services().items()}
        while ready := {name for name, others in waits.items() if not others & waits.keys()}:
            waits = {name: others for name, others in waits.items() if name not in ready}
        assert waits == {}
        assert {o for s in services().values() for o in s.settings.get("depends_on", {})} <= set(
            services()
        )

    def test_ports_are_open_to_this_machine_alone(self) -> None:
        published = [p for s in services().values() for p in s.settings.get("ports", [])]
        assert len(published) == 2
        assert all(port.startswith("127.0.0.1:") for port in published)

    def test_no_service_of_ours_has_rights_that_it_does_not_need(self) -> None:
        for name in OWN:
            settings = services()[name].settings
            assert settings["cap_drop"] == ["ALL"]
            if name != "owners":  # which does nothing else, and reaches no network
                assert "user" not in settings
                assert settings["read_only"] is True
                assert settings["security_opt"] == ["no-new-privileges:true"]
        assert services()["owners"].settings["network_mode"] == "none"


def listening() -> dict[str, set[int]]:
    """The ports that the services listen on, by their configurations."""
    ports: dict[str, set[int]] = {"grafana": {3000}, "prometheus": {9090}}  # their defaults
    for name in ("otelcol", "jaeger"):
        texts = re.findall(r"'endpoint': '0\.0\.0\.0:(\d+)'", str(services()[name].config()))
        ports[name] = set(map(int, texts))
    options = load_options(DOCKER / "collector.yaml", {}).options
    receivers = options.receivers
    addresses = receivers.grpc.address, receivers.http.address, options.health.address
    ports["collector"] = {address.port for address in addresses if address}
    tempo = services()["tempo"].config()
    otlp = tempo["distributor"]["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"]
    ports["tempo"] = {tempo["server"]["http_listen_port"], int(otlp.split(":")[1])}
    return ports


class TestConnections:
    def test_every_address_names_a_service_and_a_port_that_it_listens_on(self) -> None:
        ports = listening()
        texts = [str(document()["services"])]
        texts += [(DOCKER / "collector.yaml").read_text()]
        texts += [(DOCKER / "grafana" / "datasources.yaml").read_text()]
        texts += [(DOCKER / "prometheus.yaml").read_text()]
        named = "|".join(services())
        found = re.findall(rf"(?<![\w/.-])(?:http://)?({named}):(\d+)", "\n".join(texts))
        # The jobs' two each, the agent, Prometheus, the collector's two and Grafana's three.
        assert len(found) >= 11
        for host, port in found:
            assert int(port) in ports[host], f"{host}:{port}"

    def test_a_published_port_is_one_that_is_listened_on(self) -> None:
        ports = listening()
        for service in services().values():
            for published in service.settings.get("ports", []):
                assert int(published.split(":")[2]) in ports[service.name]

    def test_files_on_a_command_line_are_mounted_there(self) -> None:
        for service in services().values():
            words = " ".join([*service.command, *service.settings.get("entrypoint", [])])
            for path in re.findall(r"(?<![\w.])/[\w./-]+", words):
                assert path in service.binds or path in service.volumes, f"{service.name}: {path}"

    def test_a_configuration_takes_the_variables_that_it_is_given(self) -> None:
        for name in ("otelcol", "jaeger"):
            [source] = services()[name].binds.values()
            taken = set(re.findall(r"\$\{env:(\w+)", source.read_text()))
            assert services()[name].environment.keys() <= taken

    def test_written_data_goes_to_a_volume(self) -> None:
        otelcol, tempo, collector = (services()[n] for n in ("otelcol", "tempo", "collector"))
        assert otelcol.environment["DIR"] in otelcol.volumes
        storage = yaml.safe_dump([tempo.config()["storage"], tempo.config()["metrics_generator"]])
        paths = re.findall(r"path: (\S+)", storage)
        assert len(paths) == 4
        assert all(path.startswith(f"{place}/") for path in paths for place in tempo.volumes)
        options = load_options(DOCKER / "collector.yaml", {}).options
        assert str(options.spool.directory) in collector.volumes


class TestThePrograms:
    def test_the_collector_takes_its_command_and_its_file(self) -> None:
        service = services()["collector"]
        words = [service.local(word) for word in service.command]
        done = subprocess.run(
            [COMMAND, *words, "--check=offline", "--json"],
            env=os.environ | service.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        warnings = json.loads(done.stdout)["warnings"]
        # Both ports are open without a token, to the network of Compose: nothing else is unwise.
        assert len(warnings) == 2
        assert all("token" in warning for warning in warnings)

    def test_it_has_the_time_that_it_takes_to_end(self) -> None:
        options = load_options(DOCKER / "collector.yaml", {}).options
        grace = services()["collector"].settings["stop_grace_period"]
        assert int(grace.removesuffix("s")) > options.drain_s

    def test_health_check_uses_the_address_of_the_health_endpoint(self) -> None:
        test = services()["collector"].settings["healthcheck"]["test"]
        assert test[:3] == ["CMD", "python", "-c"]
        compile(test[3], "healthcheck", "exec")
        [(port, path)] = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", test[3])
        options = load_options(DOCKER / "collector.yaml", {}).options
        assert options.health.enabled
        assert options.health.address is not None
        assert options.health.address.port == int(port)
        documented = (DOCKER.parent / "docs" / "collector.md").read_text()
        assert f"| `GET {path}` | 200" in documented

    @pytest.mark.backends
    @pytest.mark.parametrize("name", ["otelcol", "jaeger"])
    def test_backends_accept_their_configuration(self, name: str, tmp_path: Path) -> None:
        service = services()[name]
        words = [service.local(word) for word in service.command]
        settings = service.environment | {"DIR": str(tmp_path)}
        done = subprocess.run(
            [binary(name), "validate", *words],
            env=os.environ | settings,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
