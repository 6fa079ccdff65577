"""deploy/systemd: the units as systemd reads them, and the program with its configuration."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cirron_otel.collector.service.config_file import load_options
from cirron_otel.collector.service.worker import _PREDECESSOR_S
from tests.conftest import leave_out

from .test_kubernetes import DATABASE, ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
COLLECTOR, AGENT = (
    ROOT / "deploy" / "systemd" / f"cirron-otel-{name}.service" for name in ("collector", "agent")
)
COMMAND = Path(sys.executable).with_name("cirron-otel")
MOST_EXPOSED = 20
"""Of `systemd-analyze security`, from 0 to 100; the default of a service is 96."""


class _Several(dict[str, str]):
    """Keeps all values of a key that is repeated, as systemd does."""

    def __setitem__(self, key: str, value: str) -> None:
        if isinstance(value, list) and key in self:
            self[key].extend(value)  # type: ignore[attr-defined]
        else:
            super().__setitem__(key, value)


def settings(unit: Path) -> dict[str, list[str]]:
    """The settings of the section Service."""
    parser = configparser.RawConfigParser(dict_type=_Several, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit.read_text())
    return {key: value.splitlines() for key, value in parser["Service"].items()}


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        leave_out("systemd-analyze is not installed: apt-get install systemd")
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=False, env=os.environ
    )


def installed(unit: Path, folder: Path, *changes: tuple[str, str]) -> Path:
    """A copy of a unit whose program exists."""
    program = folder / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={program}", unit.read_text())
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    copy = folder / unit.name
    copy.write_text(text)
    return copy


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_takes_it(unit: Path, tmp_path: Path) -> None:
    done = analyze("verify", "--man=no", str(installed(unit, tmp_path)))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("NoNewPrivileges=yes", "NoNewPrivilege=yes"),
        ("ProtectSystem=strict", "ProtectSystem=very"),
        ("SystemCallFilter=@system-service", "SystemCallFilter=@services"),
        ("KillMode=mixed", "KillMode=both"),
    ],
)
def test_a_mistake_would_show(old: str, new: str, tmp_path: Path) -> None:
    done = analyze("verify", "--man=no", str(installed(COLLECTOR, tmp_path, (old, new))))
    assert (done.returncode, done.stderr) != (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_it_is_confined(unit: Path, tmp_path: Path) -> None:
    options = "--offline=true", f"--threshold={MOST_EXPOSED}"
    done = analyze("security", *options, str(installed(unit, tmp_path)))
    assert done.returncode == 0, done.stdout
    assert analyze("security", *options[:1], "--threshold=1", str(tmp_path / unit.name)).returncode


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_it_writes_to_its_state_only(unit: Path) -> None:
    values = settings(unit)
    [directory] = values["StateDirectory"]
    assert values["StateDirectoryMode"] == ["0700"]
    assert values["WorkingDirectory"] == [f"%S/{directory}"]
    assert values["DynamicUser"] == ["yes"]
    assert "ReadWritePaths" not in values


def test_the_collector_with_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = COLLECTOR.with_name("collector.yaml")
    monkeypatch.setenv(*DATABASE)
    options = load_options(file, {}).options
    values = settings(COLLECTOR)
    assert str(options.spool.directory) == f"/var/lib/{values['StateDirectory'][0]}"
    assert options.drain_s < int(values["TimeoutStopSec"][0])
    [start] = values["ExecStart"]
    program, *words = start.split()
    assert Path(program).name == COMMAND.name
    words = [word.replace("/etc/cirron-otel", str(file.parent)) for word in words]
    done = subprocess.run(
        [COMMAND, *words, "--check=offline"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    documented = (ROOT / "docs" / "collector.md").read_text()
    assert values["SuccessExitStatus"] == ["7"]
    assert "exit code 7" in documented or "exit code\nis 7" in documented
    assert values["RestartPreventExitStatus"] == ["2"]
    assert "does not start: exit code 2" in documented
    assert "On SIGHUP the file" in documented
    assert values["ExecReload"] == ["/bin/kill -HUP $MAINPID"]


def test_the_collector_reports_to_systemd_and_reads_a_credential() -> None:
    values = settings(COLLECTOR)
    assert (values["Type"], values["NotifyAccess"]) == (["notify"], ["main"])
    # The second process is restarted after a minute: the watchdog is for the first one.
    assert int(values["WatchdogSec"][0]) >= 30
    # The start includes waiting for a predecessor's second process.
    assert int(values["TimeoutStartSec"][0]) > _PREDECESSOR_S
    [credential] = values["LoadCredential"]
    name, _, source = credential.partition(":")
    [directory] = values["RuntimeDirectory"]
    assert values["RuntimeDirectoryMode"] == ["0700"]
    assert f"PGPASSFILE=%t/{directory}/{name}" in values["Environment"]
    assert source == "/etc/cirron-otel/pgpass"
    assert source in (ROOT / "deploy" / "README.md").read_text()


def test_password_file_of_the_collector_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    """Since systemd 254, a credential of a dynamic user has mode 0440; libpq then ignores it."""
    values = settings(COLLECTOR)
    [file] = (value for value in values["Environment"] if value.startswith("PGPASSFILE="))
    places = {"%d": str(tmp_path / "credentials"), "%t": str(tmp_path / "run")}
    credential = tmp_path / "credentials" / "pgpass"
    credential.parent.mkdir()
    (tmp_path / "run" / values["RuntimeDirectory"][0]).mkdir(parents=True)
    credential.write_text("host:*:database:user:secret\n")
    credential.chmod(0o440)
    [before] = values["ExecStartPre"]
    copied = file.partition("=")[2]
    for specifier, place in places.items():
        before, copied = before.replace(specifier, place), copied.replace(specifier, place)
    subprocess.run(before.split(), check=True)
    assert Path(copied).stat().st_mode & 0o777 == 0o600
    assert Path(copied).read_text() == credential.read_text()


def test_the_agent_has_the_variables_of_its_configuration() -> None:
    text = (ROOT / "collector-config" / "agent.yaml").read_text()
    [variable] = settings(AGENT)["Environment"]
    name, _, value = variable.partition("=")
    assert f"${{env:{name}" in text
    assert value == f"%S/{settings(AGENT)['StateDirectory'][0]}"
