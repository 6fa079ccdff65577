"""The readers of the process, the host and the cgroup, on written files and on the real /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cirron_otel.core.cgroup import cpu_limit, memory_cgroup
from cirron_otel.sdk.sampling import host_readers
from cirron_otel.sdk.sampling.host_readers import CpuReader
from cirron_otel.sdk.tracing.costs import resident_now

from .proc_files import (
    MIB,
    make_proc,
    make_v1,
    make_v2,
    write_group,
)

PROC = Path("/proc")


def test_the_resident_set_of_this_process() -> None:
    read = host_readers.process_reader(PROC)
    assert read is not None
    before = resident_now()
    assert before is not None
    block = bytearray(os.urandom(1)) * (64 * MIB)
    after = read()["process_rss_bytes"]
    assert 60 * MIB < after - before < 80 * MIB
    del block


def test_the_memory_of_this_host() -> None:
    read = host_readers.host_reader(PROC)
    assert read is not None
    values = read()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert values["host_total_bytes"] == pytest.approx(pages, rel=0.01)
    assert 0 < values["host_used_bytes"] < values["host_total_bytes"]


def test_missing_system_files_yield_no_reader(tmp_path: Path) -> None:
    assert host_readers.process_reader(tmp_path) is None
    assert host_readers.host_reader(tmp_path) is None
    assert host_readers.cgroup_reader(tmp_path) is None


def test_a_host_without_the_available_memory_is_a_failure(tmp_path: Path) -> None:
    proc = make_proc(tmp_path)
    read = host_readers.host_reader(proc)
    assert read is not None
    (proc / "meminfo").write_text("MemTotal: 7 kB\n")
    with pytest.raises(ValueError, match="MemAvailable"):
        read()


@pytest.mark.parametrize("v1", [False, True])
def test_a_group_is_read_without_its_inactive_page_cache(tmp_path: Path, v1: bool) -> None:
    proc = make_proc(tmp_path / "proc")
    make = make_v1 if v1 else make_v2
    group = make(proc, tmp_path / "a mount" if not v1 else tmp_path / "mount", "/jobs/7")
    write_group(group, 100 * MIB, 400 * MIB, 30 * MIB, kills=3, v1=v1)
    read = host_readers.cgroup_reader(proc)
    assert read is not None
    assert read() == {"cgroup_used_bytes": 70 * MIB, "cgroup_limit_bytes": 400 * MIB}
    found = memory_cgroup(proc / "self")
    assert found is not None
    assert found.oom_kills() == 3


@pytest.mark.parametrize("v1", [False, True])
def test_a_group_without_a_limit(tmp_path: Path, v1: bool) -> None:
    proc = make_proc(tmp_path / "proc")
    group = (make_v1 if v1 else make_v2)(proc, tmp_path / "mount", "/a")
    write_group(group, 5 * MIB, None, v1=v1)
    read = host_readers.cgroup_reader(proc)
    assert read is not None
    assert read() == {"cgroup_used_bytes": 5 * MIB}


def test_strictest_limit_of_the_ancestor_cgroups_applies(tmp_path: Path) -> None:
    proc, mount = make_proc(tmp_path / "proc"), tmp_path / "mount"
    group = make_v2(proc, mount, "/slice/pod/container")
    write_group(group, 10 * MIB, 900 * MIB, v1=False)
    write_group(mount / "slice" / "pod", 60 * MIB, 100 * MIB, v1=False)
    write_group(mount / "slice", 70 * MIB, None, v1=False)
    read = host_readers.cgroup_reader(proc)
    assert read is not None
    assert read() == {"cgroup_used_bytes": 60 * MIB, "cgroup_limit_bytes": 100 * MIB}


@pytest.mark.parametrize("path", ["/", "/host/only/path", "/../../outside"])
def test_in_a_container_the_mounts_root_is_the_group(tmp_path: Path, path: str) -> None:
    """The path is the container's own, the host's, or outside of the namespace."""
    proc, mount = make_proc(tmp_path / "proc"), tmp_path / "mount"
    make_v2(proc, mount, "/")
    (proc / "self" / "cgroup").write_text(f"0::{path}\n")
    write_group(mount, 9 * MIB, 20 * MIB, v1=False)
    read = host_readers.cgroup_reader(proc)
    assert read is not None
    assert read() == {"cgroup_used_bytes": 9 * MIB, "cgroup_limit_bytes": 20 * MIB}


@pytest.mark.parametrize("text", ["", "garbage", "0::/nowhere\n", "a:b", "4:memory:/x\n", "0::\n"])
def test_a_process_without_a_readable_group(tmp_path: Path, text: str) -> None:
    proc = make_proc(tmp_path / "proc")
    make_v2(proc, tmp_path / "mount", "/")
    (proc / "self" / "cgroup").write_text(text)
    assert host_readers.cgroup_reader(proc) is None


def test_the_share_of_the_cpus_that_were_used() -> None:
    times = iter([0, 10_000_000_000])
    reader = CpuReader(lambda: next(times))
    assert reader.read() is None
    total = sum(number * number for number in range(400_000))
    assert total
    share = reader.read()
    assert share is not None
    assert 0 < share < 0.5


@pytest.mark.parametrize(
    ("outer", "inner", "cpus"),
    [("max 100000", "max 100000", None), ("400000 100000", "max 100000", 4.0),
     ("400000 100000", "150000 100000", 1.5), ("100000 100000", "400000 100000", 1.0),
     ("odd", "150000 0", None)],
)  # fmt: skip
def test_the_strictest_limit_of_cpus_applies(
    tmp_path: Path, outer: str, inner: str, cpus: float | None
) -> None:
    proc = make_proc(tmp_path / "proc")
    mount = tmp_path / "cgroup"
    directory = make_v2(proc, mount, "/pod/container")
    for group, limit in ((directory, inner), (directory.parent, outer)):
        write_group(group, 1, None, v1=False)
        (group / "cpu.max").write_text(f"{limit}\n")
    assert cpu_limit(proc / "self") == cpus
    assert cpu_limit(tmp_path) is None
