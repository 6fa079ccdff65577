"""Digests beyond the spool: OTLP, pruning, the command line, the page, and their absence."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

import cirron_otel as ci
from cirron_otel.core.analysis.verify import verify_spool
from cirron_otel.core.spool.reader import SpoolReader
from tests.kit.forked_scripts import ForkedScripts
from tests.kit.servers.servers import http_receiver
from tests.kit.sessions.processes import ROOT, environment
from tests.kit.spools.comparing import assert_same, cirron_otel
from tests.kit.spools.comparing import batches as as_values

from .loops import Loop, plain, traced
from .reading import digests, values

TEXT = (ROOT / "docs" / "digests.md").read_text()


@pytest.mark.parametrize("requested", ["summary", "full"])
def test_over_otlp(requested: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with http_receiver() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        monkeypatch.setenv("CIRRON_METRICS", "false")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        with traced(tmp_path, digest="tensors", exporters="otlp", otlp_snapshots=requested):
            plain(Loop())
    texts = [
        str(event)
        for post in server.posts
        for message in TracesData.FromString(post.body).resource_spans
        for scope in message.scope_spans
        for span in scope.spans
        for event in span.events
        if "digest." in str(event)
    ]
    assert len(texts) == len(values(tmp_path))
    assert all(any(digest in text for text in texts) for digest in values(tmp_path).values())
    assert all(("packed" in text) == (requested == "full") for text in texts)
    assert all(each.tensors for each in digests(tmp_path))


def test_to_otlp_and_back(tmp_path: Path) -> None:
    with traced(tmp_path / "run", digest="tensors", digest_keep="1"):
        plain(Loop())
    cirron_otel("convert", tmp_path / "run", tmp_path / "traces.jsonl")
    cirron_otel("convert", tmp_path / "traces.jsonl", tmp_path / "back")
    assert_same(as_values(tmp_path / "back"), as_values(tmp_path / "run"))


def test_retained_files_are_pruned_with_their_batch(tmp_path: Path) -> None:
    with traced(tmp_path, digest="step", digest_keep="0..1"):
        plain(Loop())
    cirron_otel("spool", "prune", tmp_path, "--max-bytes", "1GB")
    files = sorted((tmp_path / "snapshots").glob("*/*.safetensors"))
    assert len(files) == 12
    assert [each.code for each in verify_spool(SpoolReader(tmp_path))] == []
    cirron_otel("spool", "prune", tmp_path, "--older-than", "0s")
    assert list((tmp_path / "snapshots").glob("*/*.safetensors")) == []


def test_the_command_sets_the_options(tmp_path: Path) -> None:
    (program,) = re.findall(r"```py\n(import torch\n\n.{,40}profile.*?)```", TEXT, re.DOTALL)
    (tmp_path / "train.py").write_text(program.replace('ci.profile(digest="tensors")\n', ""))
    command = ["run", "--digest", "step", "--digest-every", "3", "--digest-keep", "1", "--quiet"]
    subprocess.run(
        [Path(sys.executable).with_name("cirron-otel"), *command, "--", sys.executable, "train.py"],
        cwd=tmp_path, check=True, timeout=120, env=environment(),
    )  # fmt: skip
    found = digests(tmp_path / ".cirron")
    assert sorted({each.mark.step for each in found}) == [0, 1, 3]
    assert {each.mark.step for each in found if each.mark.blob_uri} == {1}


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--digest", "all", "one of step, tensors, or none"),
        ("--digest-keep", "5..2", "the first and the last step, such as 10..12, or none"),
        ("--digest-every", "0", "a whole number of at least 1"),
    ],
)
def test_wrong_values_are_usage_errors(option: str, value: str, expected: str) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("cirron-otel"), "run", option, value, "--", "true"],
        capture_output=True, text=True, timeout=60, check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 2
    assert f"{value!a}: expected {expected}" in done.stderr


def test_the_program_of_the_page(scripts: ForkedScripts, tmp_path: Path) -> None:
    (text,) = re.findall(r"```py\n(import torch\n\n.{,40}profile.*?)```", TEXT, re.DOTALL)
    scripts.text(text, tmp_path)
    found = digests(tmp_path / ".cirron")
    assert len(found) == 4 * 6
    assert {each.mark.failed for each in found} == {None}


_HOOKS = """
import sys
import torch
from torch.optim import optimizer
from torch.utils.data import dataloader
import cirron_otel as ci
ci.profile(digest={digest!r}, exporters="none")
hooks = [
    dataloader._BaseDataLoaderIter.__next__, torch.autograd.backward, torch.amp.GradScaler.step,
    *optimizer._global_optimizer_pre_hooks.values(),
    *optimizer._global_optimizer_post_hooks.values(),
]
print(sum("torch/digests.py" in each.__code__.co_filename for each in hooks))
print([name for name in sys.modules if ".snapshots.digest_" in name])
"""


@pytest.mark.parametrize(("digest", "hooks"), [(None, 0), ("step", 5)])
def test_hooks_are_installed_only_on_request(
    digest: str | None, hooks: int, scripts: ForkedScripts, tmp_path: Path
) -> None:
    """Without digests, no instruction of theirs is executed in a step."""
    done = scripts.text(_HOOKS.format(digest=digest), tmp_path)
    count, modules = done.stdout.splitlines()
    assert int(count) == hooks
    assert (modules == "[]") == (digest is None)


def test_health_counts_digests(tmp_path: Path) -> None:
    with traced(tmp_path, digest="step", digest_keep="1"):
        plain(Loop())
    health = ci.health()["digests"]
    assert health["count"] == 36
    assert health["files"] == 6
    assert health["file_bytes"] == sum(
        each.stat().st_size for each in (tmp_path / "snapshots").glob("*/*")
    )
    assert 0 < health["longest_seconds"] <= health["seconds"]
