"""A directory in the form of /proc, with the files that the readers use."""

from __future__ import annotations

from pathlib import Path

MIB = 2**20


def make_proc(root: Path, *, rss_pages: int = 1000, total_kib: int = 1 << 20) -> Path:
    """Write `self/statm` and `meminfo`: half of the memory is available."""
    (root / "self").mkdir(parents=True)
    (root / "self" / "statm").write_text(f"5000 {rss_pages} 100 1 0 300 0\n")
    write_host(root, total_kib, total_kib // 2)
    return root


def write_host(root: Path, total_kib: int, available_kib: int) -> None:
    (root / "meminfo").write_text(
        f"MemTotal: {total_kib} kB\nMemFree: 7 kB\nMemAvailable: {available_kib} kB\n"
    )


def make_v2(root: Path, mount: Path, path: str, mounted: str = "/") -> Path:
    """Place the process in a group of v2; return the group's directory."""
    (root / "self" / "cgroup").write_text(f"0::{path}\n")
    escaped = str(mount).replace(" ", r"\040")
    (root / "self" / "mountinfo").write_text(
        f"31 23 0:28 / /proc rw - proc proc rw\n"
        f"32 23 0:29 {mounted} {escaped} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    below = path.removeprefix(mounted).strip("/") if path.startswith(mounted) else ""
    directory = mount / below
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def make_v1(root: Path, mount: Path, path: str) -> Path:
    """Place the process in a group of v1's memory controller; return the group's directory."""
    (root / "self" / "cgroup").write_text(f"5:cpu,cpuacct:/x\n4:memory:{path}\n0::/\n")
    (root / "self" / "mountinfo").write_text(
        f"35 31 0:32 / {mount} rw,relatime - cgroup cgroup rw,memory\n"
    )
    directory = mount / path.strip("/")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def write_group(
    directory: Path, used: int, limit: int | None, inactive: int = 0, kills: int = 0, *, v1: bool
) -> None:
    """Write the files of a group's memory controller."""
    if v1:
        (directory / "memory.usage_in_bytes").write_text(f"{used}\n")
        (directory / "memory.limit_in_bytes").write_text(f"{limit or 9223372036854771712}\n")
        (directory / "memory.stat").write_text(f"cache 5\ntotal_inactive_file {inactive}\n")
        (directory / "memory.oom_control").write_text(f"under_oom 0\noom_kill {kills}\n")
    else:
        (directory / "memory.current").write_text(f"{used}\n")
        (directory / "memory.max").write_text(f"{limit or 'max'}\n")
        (directory / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")
        (directory / "memory.events").write_text(f"low 0\noom 1\noom_kill {kills}\n")
