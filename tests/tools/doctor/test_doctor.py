"""`doctor` without an endpoint: variables, configuration, spool, hooks, packages, clock."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import cirron_otel
from cirron_otel.core.config.resolve import resolve
from cirron_otel.tools.doctor.clock import examine_clock
from cirron_otel.tools.doctor.hooks import examine_hooks
from cirron_otel.tools.doctor.settings import (
    examine_configuration,
    examine_variables,
    known_variables,
)
from cirron_otel.tools.doctor.spool import examine_spool, filesystem_of
from cirron_otel.tools.doctor.versions import examine_packages
from tests.kit.servers.cirron_server import CirronServer, Fault
from tests.kit.servers.server import OtlpServer
from tests.tools.cli.test_demo import broken_torch, python_path, without_torch
from tests.tools.conftest import Run, environment

from .test_doctor_endpoint import black_hole

SECRET = "sk-abc123def456"


def checks_of(run: Run, *arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run the command, and return its findings by name."""
    result = run("doctor", "--json", "--no-hooks", *arguments, env=env)
    assert SECRET not in result.stdout + result.stderr
    return {each["check"]: each for each in json.loads(result.stdout)["checks"]}


class TestTheCommand:
    def test_without_an_endpoint_only_the_spool_is_written(self, run: Run, tmp_path: Path) -> None:
        result = run("doctor", "--no-hooks")
        assert (result.returncode, result.stderr) == (0, "")
        lines = result.stdout.splitlines()
        assert lines[-3].startswith(
            "ok       endpoint         none is set: batches are only stored in the spool"
        )
        assert str(tmp_path / ".cirron") in lines[-3]
        assert lines[-1].startswith(f"{len(lines) - 2} checks: ")
        assert lines[-1].endswith(", 0 failed")
        assert list(tmp_path.iterdir()) == []

    def test_exit_code_is_1_if_a_check_fails(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        result = run("doctor", "--no-hooks", env={"CIRRON_OUTPUT_DIR": "file/below"})
        assert result.returncode == 1
        assert "\nfailed   spool            " in result.stdout
        assert "file cannot be written: Not a directory → set CIRRON_OUTPUT_DIR" in result.stdout

    @pytest.mark.parametrize("timeout", ["0", "soon", "1e9", "nan"])
    def test_exit_code_is_2_for_an_invalid_timeout(self, run: Run, timeout: str) -> None:
        assert run("doctor", "--timeout", timeout).returncode == 2

    def test_a_name_that_a_terminal_would_obey(self, run: Run) -> None:
        result = run("doctor", "--no-hooks", env={"CIRRON_OUTPUT_DIR": "a\x1b[31mb"})
        assert "\x1b" not in result.stdout
        assert r"a\x1b[31mb" in result.stdout


class TestVariables:
    def test_known_ones(self) -> None:
        check = examine_variables({
            "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY": "x",
            "CIRRON_OUTPUT_DIR": "x",
            "OTEL_PYTHON_FLASK_EXCLUDED_URLS": "x",
            "OTEL_BSP_SCHEDULE_DELAY": "1",
            "PATH": "x",
        })  # fmt: skip
        assert check.state == "ok"
        assert check.details["unknown"] == []
        assert len(check.details["read"]) == 3

    def test_all_that_the_package_reads_is_known(self) -> None:
        package = Path(cirron_otel.__file__).parent
        text = "".join(file.read_text() for file in package.rglob("*.py"))
        named = set(re.findall(r'"((?:CIRRON|OTEL)_[A-Z_]*[A-Z])"', text))
        assert len(named) > 10
        assert named <= known_variables()

    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("OTEL_EXPORTER_OLTP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
            ("OTEL_EXPORTER_OTLP_HEADER", "OTEL_EXPORTER_OTLP_HEADERS"),
            ("OTEL_EXPORTER_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
            ("OTEL_SERVICENAME", "OTEL_SERVICE_NAME"),
            ("CIRON_API_KEY", "CIRRON_API_KEY"),
            ("CIRRON_SNAPSHOT", "CIRRON_SNAPSHOTS"),
            ("CIRRON_FRAMEWORK", "CIRRON_FRAMEWORKS"),
            ("otel_service_name", "OTEL_SERVICE_NAME"),
        ],
    )
    def test_slips(self, name: str, meant: str) -> None:
        check = examine_variables({name: SECRET})
        assert check.state == "warning"
        assert check.details["misspelt"] == {name: meant}
        assert f"{name} (did you mean {meant}?)" in check.found
        assert SECRET not in str(check)

    def test_unknown_variables_are_reported(self) -> None:
        check = examine_variables({"CIRRON_WEATHER": "fine", "OTEL_WEATHER": "fine"})
        assert (check.state, check.details["unknown"]) == (
            "warning",
            ["CIRRON_WEATHER", "OTEL_WEATHER"],
        )
        assert "not an option: CIRRON_WEATHER" in check.found


class TestConfiguration:
    @pytest.mark.parametrize(
        ("environ", "said"),
        [
            ({"OTEL_SDK_DISABLED": "true"}, "tracing is disabled by OTEL_SDK_DISABLED"),
            ({"CIRRON_ENABLED": "no"}, "tracing is disabled by CIRRON_ENABLED"),
            ({"CIRRON_FLUSH_INTERVAL": "-1"}, "CIRRON_FLUSH_INTERVAL is '-1': expected a number"),
            (
                {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"},
                "nothing is sent there: OTEL_TRACES_EXPORTER is 'none'",
            ),
            (
                {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "CIRRON_EXPORTERS": "none"},
                "nothing is sent there: CIRRON_EXPORTERS is 'none'",
            ),
            ({"CIRRON_EXPORTERS": "cirron"}, "there is no api_key"),
        ],
    )
    def test_invalid_or_disabling_settings_are_warnings(
        self, environ: dict[str, str], said: str, tmp_path: Path
    ) -> None:
        resolved = resolve(environ=environ, cwd=tmp_path, home=tmp_path)
        found = list(examine_configuration(resolved, environ))
        assert [str(each.state) for each in found] == ["warning"]
        assert said in found[0].found

    def test_valid_configuration_is_ok(self, tmp_path: Path) -> None:
        environ = {"CIRRON_SNAPSHOTS": "full"}
        resolved = resolve(environ=environ, cwd=tmp_path, home=tmp_path)
        (check,) = examine_configuration(resolved, environ)
        assert (check.state, check.found) == ("ok", "from CIRRON_SNAPSHOTS")


_KILLED = """
import os, signal, sys
import cirron_otel as ci
ci.profile(output_dir=sys.argv[1], frameworks=[], exporters="none", flush_interval=0.05)
with ci.scope("epoch"):
    with ci.scope("step"):
        pass
    ci.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_in(directory: Path) -> None:
    """Record in a process that is killed within a scope."""
    done = subprocess.run([sys.executable, "-c", _KILLED, str(directory)], check=False)
    assert done.returncode == -signal.SIGKILL


class TestSpool:
    def test_spool_left_open_by_a_dead_process_is_reported_and_recovered(
        self, run: Run, tmp_path: Path
    ) -> None:
        killed_in(tmp_path / ".cirron")
        check = checks_of(run)["spool left open"]
        assert (check["state"], len(check["details"]["owners"])) == ("warning", 1)
        assert check["advice"].startswith("cirron-otel spool recover ")
        done = subprocess.run(
            ["bash", "-c", check["advice"]], cwd=tmp_path, env=environment(), check=False
        )
        assert done.returncode == 0
        assert "spool left open" not in checks_of(run)

    def test_unsent_batches_are_reported_and_the_advice_sends_them(
        self, run: Run, spool: Path, server: OtlpServer
    ) -> None:
        check = checks_of(run, "--no-send", env=server.environ)["spool batches"]
        files = len(list((spool / "spool").iterdir()))
        assert (check["state"], check["details"]["unsent"]) == ("warning", files)
        done = subprocess.run(
            ["bash", "-c", check["advice"]], env=environment(**server.environ), check=False
        )
        assert done.returncode == 0
        check = checks_of(run, "--no-send", env=server.environ)["spool batches"]
        assert (check["state"], check["details"]["unsent"]) == ("ok", 0)
        assert checks_of(run)["spool batches"]["details"]["batches"] == files

    def test_others_may_read_it(self, run: Run, spool: Path) -> None:
        for directory in (spool, spool / "spool"):
            directory.chmod(0o755)
        check = checks_of(run)["spool"]
        assert "other users of this machine can read the recordings" in check["found"]
        assert check["advice"] == f"chmod 700 {spool}"
        spool.chmod(0o700)
        assert "others on this machine" not in checks_of(run)["spool"]["found"]

    def test_spool_cap_exceeding_free_space_is_a_warning(self, run: Run) -> None:
        check = checks_of(run, env={"CIRRON_SPOOL_MAX_BYTES": "900TB"})["spool disk"]
        assert check["state"] == "warning"
        assert "CIRRON_SPOOL_MAX_BYTES" in check["advice"]

    def test_in_memory(self, run: Run) -> None:
        place = Path("/dev/shm")
        if filesystem_of(place) != "tmpfs" or not os.access(place, os.W_OK):
            pytest.skip("there is no /dev/shm that can be written")
        check = checks_of(run, env={"CIRRON_OUTPUT_DIR": "/dev/shm/cirron-otel-none"})["spool disk"]
        assert (check["state"], check["details"]["filesystem"]) == ("warning", "tmpfs")
        assert not Path("/dev/shm/cirron-otel-none").exists()

    def test_unwritable_output_directory_fails(self, tmp_path: Path) -> None:
        config = resolve({"output_dir": "/proc/nothing"}, environ={}, cwd=tmp_path).config
        (check,) = examine_spool(config, {}, 10)
        assert (check.state, check.is_endpoint) == ("failed", False)
        assert "cannot be written" in check.found


_ANOTHER = """Metadata-Version: 2.1
Name: opentelemetry-weather
Version: 1.0
Requires-Dist: opentelemetry-sdk<1
Requires-Dist: no-such-thing>=2
Requires-Dist: protobuf<1; extra == "old"
"""


class TestPackages:
    def test_unmet_requirements_of_packages_are_reported(self, run: Run, tmp_path: Path) -> None:
        path = python_path(tmp_path, "opentelemetry_weather-1.0.dist-info/METADATA", _ANOTHER)
        check = checks_of(run, env=path)["packages"]
        assert check["state"] == "warning"
        assert "opentelemetry-weather requires opentelemetry-sdk <1, found 1." in check["found"]
        assert (
            "opentelemetry-weather requires no-such-thing, which is not installed" in check["found"]
        )
        assert "protobuf <1" not in check["found"]

    def test_installed_versions_are_reported(self) -> None:
        first, *others = examine_packages(("otlp",))
        assert first.details["versions"]["opentelemetry-sdk"] in first.found
        assert all(each.state != "failed" for each in others)

    def test_an_extra_that_is_missing(self) -> None:
        from cirron_otel.tools.doctor.versions import _missing

        missing = _missing("otlp", {"certifi": "2026", "idna": "3"})
        assert set(missing) == {"opentelemetry-exporter-otlp", "grpcio"}
        assert _missing("otlp", dict.fromkeys([*missing, "certifi", "idna"], "2")) == []


def test_the_clock_of_this_machine() -> None:
    check = examine_clock()
    assert check.name == "clock"
    assert check.found.startswith(("2", "the wall clock"))


_STUCK = """
import sys
if sys.argv[:1] == ["-m"]:
    import cirron_otel.sdk.instrumentation.patches as patches
    patches.Patches.undo = lambda *_: None
"""


class TestHooks:
    def test_without_torch(self, run: Run, tmp_path: Path) -> None:
        hidden = without_torch(tmp_path)
        result = run("doctor", env=hidden)
        assert result.returncode == 0
        assert (
            "ok       hooks            PyTorch is not installed: only manual scopes"
            in result.stdout
        )
        result = run("doctor", env={**hidden, "CIRRON_FRAMEWORKS": "torch"})
        assert result.returncode == 1
        assert "`frameworks` names torch, which is not installed → pip install" in result.stdout

    @pytest.mark.parametrize(
        ("code", "reason"),
        [
            ("raise ImportError('libcudart.so.13: no such file')", "ImportError: libcudart.so.13"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it ended with -11"),
        ],
    )
    def test_a_torch_that_does_not_work(
        self, run: Run, tmp_path: Path, code: str, reason: str
    ) -> None:
        result = run("doctor", env=broken_torch(tmp_path, code))
        assert result.returncode == 1
        assert f"failed   hooks            PyTorch does not work here: {reason}" in result.stdout

    def test_without_a_place_for_temporary_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A container whose file system is read-only has none."""
        config = resolve(environ={}, cwd=tmp_path, home=tmp_path).config
        (tmp_path / "torch.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
        check = examine_hooks(config, os.environ)
        assert (check.state, "TMPDIR" in check.advice) == ("warning", True)
        assert "could not be tested: No such file" in check.found

    @pytest.mark.torch
    def test_a_step_is_seen_and_all_put_back(self, tmp_path: Path) -> None:
        config = resolve(environ={}, cwd=tmp_path, home=tmp_path).config
        check = examine_hooks(config, {**os.environ, "CIRRON_ENABLED": "false"})
        assert check.state == "ok", check.found
        assert "a step is recorded, and all " in check.found
        assert check.details["hooked"] > 3
        assert check.details["left"] == []

    @pytest.mark.slow
    @pytest.mark.torch
    def test_hooks_that_are_not_undone_are_reported(self, tmp_path: Path) -> None:
        config = resolve(environ={}, cwd=tmp_path, home=tmp_path).config
        path = python_path(tmp_path, "sitecustomize.py", _STUCK)
        check = examine_hooks(config, {**os.environ, **path})
        assert check.state == "failed"
        assert "the hooks leave torch." in check.found


class TestThePlatform:
    def settings(self, platform: CirronServer) -> dict[str, str]:
        return {"CIRRON_API_KEY": SECRET, "CIRRON_API_ENDPOINT": platform.url}

    def test_a_span_is_taken(self, run: Run) -> None:
        platform = CirronServer()
        with platform.running():
            found = checks_of(run, env=self.settings(platform))
        (batch,) = platform.batches.values()
        assert found["cirron span"]["state"] == "ok"
        assert found["cirron span"]["details"]["span_id"] == batch["spans"][0]["id"]
        assert platform.posts()[0].headers["authorization"] == f"Bearer {SECRET}"

    def test_without_sending(self, run: Run) -> None:
        platform = CirronServer()
        with platform.running():
            found = checks_of(run, "--no-send", env=self.settings(platform))
        assert found["cirron request"]["state"] == "ok"
        assert [each.method for each in platform.requests] == ["HEAD"]

    @pytest.mark.parametrize("arguments", [(), ("--no-send",)])
    def test_a_key_that_is_not_known(self, run: Run, arguments: tuple[str, ...]) -> None:
        platform = CirronServer()
        with platform.running():
            fault = Fault(401, body=f"no {SECRET}".encode())
            platform.faults, platform.blob_faults = [fault], [fault]
            result = run("doctor", "--no-hooks", *arguments, env=self.settings(platform))
        assert result.returncode == 5
        assert SECRET not in result.stdout + result.stderr
        assert "401" in result.stdout
        assert "CIRRON_API_KEY" in result.stdout

    def test_unreachable_endpoint_fails_the_tcp_check(self, run: Run) -> None:
        settings = {"CIRRON_API_KEY": SECRET, "CIRRON_API_ENDPOINT": "http://127.0.0.1:1"}
        found = checks_of(run, env=settings)
        assert found["cirron tcp"]["state"] == "failed"
        assert "CIRRON_API_ENDPOINT" in found["cirron tcp"]["advice"]

    def test_in_a_run_nothing_is_asked(self, run: Run) -> None:
        found = checks_of(run, env={"CIRRON_API_KEY": SECRET, "CIRRON_RUN_ID": "7"})
        assert "standard output" in found["cirron"]["found"]


class TestTheCommandAtAnEndpoint:
    def test_exit_code_is_5_if_the_endpoint_fails(self, run: Run) -> None:
        with black_hole() as port:
            environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
            result = run("doctor", "--no-hooks", "--timeout", "0.5", env=environ)
        assert result.returncode == 5
        assert result.stderr == ""
        line = next(line for line in result.stdout.splitlines() if line.startswith("failed"))
        assert line.startswith("failed   otlp tcp         127.0.0.1:")
        assert " → check the host and the port in OTEL_EXPORTER_OTLP_ENDPOINT" in line
        assert result.stdout.splitlines()[-1].endswith(" 1 failed")

    def test_json_with_a_span_that_arrives(self, run: Run, server: OtlpServer) -> None:
        result = run("doctor", "--no-hooks", "--json", env=server.environ)
        assert (result.returncode, result.stderr) == (0, "")
        document = json.loads(result.stdout)
        (check,) = [each for each in document["checks"] if each["check"] == "otlp span"]
        assert server.trace_ids() == {check["details"]["trace_id"]}
        assert document["failed"] == 0
        assert document["ok"] + document["warning"] == len(document["checks"])
