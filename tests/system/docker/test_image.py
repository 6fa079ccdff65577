"""docker/Dockerfile, and what compose.yaml needs of it (more: tests/project/test_packaging.py)."""

from __future__ import annotations

import json
import re

from cirron_otel.collector.service.config_file import load_options
from tests.project.test_packaging import PROJECT, dockerfile

from .composed import COMPOSE, services


def arguments(name: str) -> str:
    return " ".join(arguments for instruction, arguments in dockerfile() if instruction == name)


def test_image_installs_the_extras_the_collector_may_need() -> None:
    [extras] = re.findall(r"'\.\[([a-z0-9,]+)\]'", arguments("RUN"))
    assert set(extras.split(",")) == {"collector", "columns", "otlp", "postgres", "s3"}
    assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"])


def test_its_user_owns_the_folder_that_is_written_to() -> None:
    user, group = arguments("USER").split(":")
    assert f"--owner={user} --group={group} --mode=0700 /data" in arguments("RUN")
    assert arguments("WORKDIR").split()[-1] == "/data"
    assert "/data" in services()["collector"].volumes


def test_others_that_write_are_given_their_folder() -> None:
    owners = services()["owners"]
    assert owners.settings["entrypoint"] == ["chown", arguments("USER"), *owners.volumes]
    others = [services()["otelcol"], services()["tempo"]]
    assert set(owners.volumes.values()) == {v for s in others for v in s.volumes.values()}
    for service in others:
        wait = service.settings["depends_on"]["owners"]
        assert wait == {"condition": "service_completed_successfully"}
    [tmpfs] = services()["job-0"].settings["tmpfs"]
    assert tmpfs == "/data:uid={},gid={},mode=0700".format(*arguments("USER").split(":"))


def test_it_exposes_the_ports_that_the_collector_listens_on() -> None:
    options = load_options(COMPOSE.with_name("collector.yaml"), {}).options
    grpc, http = options.receivers.grpc.address, options.receivers.http.address
    ports = [a.port for a in (grpc, http, options.health.address) if a is not None]
    assert list(map(int, arguments("EXPOSE").split())) == ports


def test_first_process_of_the_image_is_an_init_that_passes_signals_on() -> None:
    [entry] = [json.loads(each) for kind, each in dockerfile() if kind == "ENTRYPOINT"]
    assert entry == ["tini", "--", "cirron-otel"]
    assert "apt-get install --yes --no-install-recommends tini" in arguments("RUN")
