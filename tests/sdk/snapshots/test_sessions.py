"""Snapshots of a session from end to end: what is taken when, and where it goes."""

from __future__ import annotations

import gc
import random
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import cirron_otel as ci
from cirron_otel.sdk.tracing.state import state
from tests.core.spool.test_format_text import PROGRAM
from tests.kit.forked_scripts import ForkedScripts
from tests.kit.sessions.opened import opened

from .training import (
    GRADIENTS,
    NAMES,
    batches,
    by_epoch,
    epochs,
    model,
    path_of,
    see_it_is_right,
    snapshots,
    train,
)

KEYS = ["id", "span_id", "tensor_name", "shape", "dtype", "mode", "stats", "blob_uri", "ts_ns",
        "attrs"]  # fmt: skip


class TestCapturedSnapshots:
    def test_statistics_of_every_tensor_at_the_end_of_each_epoch(self, tmp_path: Path) -> None:
        with opened(tmp_path) as profiler:
            seen = train(ci.watch(model()))
        see_it_is_right(tmp_path)
        for truth, span, records in zip(seen, epochs(tmp_path), by_epoch(tmp_path), strict=True):
            assert list(records) == NAMES + GRADIENTS
            for name, record in records.items():
                assert list(record) == KEYS
                assert re.fullmatch(r"[0-9a-f]{32}", record["id"])
                assert record["id"][16:] == span["id"][16:]
                assert (record["mode"], record["blob_uri"], record["attrs"]) == ("stats", None, {})
                assert record["ts_ns"] == span["end_ns"]
                assert (record["shape"], record["dtype"]) == (list(truth[name].shape), "float32")
                assert record["stats"]["mean"] == pytest.approx(truth[name].double().mean().item())
                assert sum(record["stats"]["histogram"]["counts"]) == truth[name].numel()
        health = profiler.health()
        assert (health["recorded"]["snapshots"], health["snapshots"]["count"]) == (16, 2)
        assert not any(health["drops"].values())
        (session,) = [
            span
            for batch in batches(tmp_path)
            for span in batch["spans"]
            if span["name"] == "cirron.session"
        ]
        assert not [key for key in session["attrs"] if key.startswith("drops.")]
        assert health["swallowed_errors"] == {}
        assert not (tmp_path / "snapshots").exists()

    def test_records_are_in_canonical_order_matching_the_model(self, tmp_path: Path) -> None:
        with opened(tmp_path):
            train(ci.watch(model()), 3)
        for batch in batches(tmp_path):
            order = [(each["ts_ns"], each["id"]) for each in batch["snapshots"]]
            assert order == sorted(order)
        names = [record["tensor_name"] for record in snapshots(tmp_path)]
        assert names == (NAMES + GRADIENTS) * 3

    def test_an_epoch_that_is_left_early_has_one_too(self, tmp_path: Path) -> None:
        watched = ci.watch(model())

        def fail() -> None:
            for _ in ci.epochs([1]):
                _ = 1 / 0

        with opened(tmp_path):
            for _ in ci.epochs(range(9)):
                break
            with pytest.raises(ZeroDivisionError):
                fail()
            gc.collect()
        assert [list(records) for records in by_epoch(tmp_path)] == [NAMES, NAMES]
        del watched

    def test_each_item_of_a_generator_too(self, tmp_path: Path) -> None:
        watched = ci.watch(model())
        with opened(tmp_path):
            for _ in ci.epochs(number for number in range(3)):
                pass
        assert len(by_epoch(tmp_path)) == 3
        assert all(by_epoch(tmp_path))
        del watched

    def test_calling_twice_for_an_epoch_is_calling_once(self, tmp_path: Path) -> None:
        watched = ci.watch(model())
        with opened(tmp_path), ci.scope("epoch") as scope:
            state.epoch_ended(scope)
            state.epoch_ended(scope)
        assert len(snapshots(tmp_path)) == 4
        del watched

    @pytest.mark.parametrize("name", ["no model", "taken back", "gone", "no torch model"])
    def test_without_a_model_nothing_is_taken(self, name: str, tmp_path: Path) -> None:
        watched = model()
        ci.watch(watched)
        if name == "no torch model":

            class Estimator:
                pass

            estimator = ci.watch(Estimator())
        elif name != "gone":
            ci.watch(None)
        if name == "gone":
            del watched
            gc.collect()
        with opened(tmp_path) as profiler:
            for _ in ci.epochs(range(2)):
                pass
        assert snapshots(tmp_path) == []
        assert profiler.health()["swallowed_errors"] == {}
        if name == "no torch model":
            del estimator

    @pytest.mark.parametrize("options", [{"snapshots": None}, {"output": "none"}])
    def test_switched_off_nothing_is_taken(self, options: dict[str, Any], tmp_path: Path) -> None:
        with opened(tmp_path, **options) as profiler:
            train(ci.watch(model()))
        assert snapshots(tmp_path) == []
        assert profiler.health()["snapshots"]["count"] == 0

    def test_manual_scopes_and_loops_of_another_name_are_not_epochs(self, tmp_path: Path) -> None:
        watched = ci.watch(model())
        with opened(tmp_path):
            with ci.scope("epoch", index=0):  # nor are they in cirron-sdk
                pass
            for _ in ci.epochs(range(2), name="fold"):
                pass
        assert snapshots(tmp_path) == []
        del watched

    def test_nonfinite_values_are_counted(self, tmp_path: Path) -> None:
        watched = ci.watch(model())
        with torch.no_grad():
            watched[0].bias[:3] = torch.tensor([float("nan"), float("inf"), float("-inf")])
        with opened(tmp_path):
            for _ in ci.epochs(range(1)):
                pass
        see_it_is_right(tmp_path, notes={"histogram"})  # it is in `finite`
        record = by_epoch(tmp_path)[0]["0.bias"]
        assert record["attrs"] == {"nan_count": 1, "posinf_count": 1, "neginf_count": 1}
        assert record["stats"]["nonfinite_count"] == 3
        assert record["stats"]["finite"]["count"] == 2
        assert record["stats"]["mean"] is None
        assert set(record["stats"]["nonfinite"].values()) == {"nan"}

    def test_more_records_than_a_batch_may_have(self, tmp_path: Path) -> None:
        watched = ci.watch(torch.nn.ParameterList([torch.ones(1)] * 1 + [
            torch.full((1,), float(number)) for number in range(4_100)]))  # fmt: skip
        with opened(tmp_path):
            for _ in ci.epochs(range(1)):
                pass
        see_it_is_right(tmp_path)
        counts = [len(batch["snapshots"]) for batch in batches(tmp_path)]
        assert sum(counts) == 4_101
        assert max(counts) <= 4_200
        del watched


class TestFiles:
    def test_full_stores_every_epoch_as_it_was_then(self, tmp_path: Path) -> None:
        with opened(tmp_path, snapshots="full"):
            seen = train(ci.watch(model()), 3)
        see_it_is_right(tmp_path)
        for truth, span, records in zip(seen, epochs(tmp_path), by_epoch(tmp_path), strict=True):
            assert {record["mode"] for record in records.values()} == {"full"}
            folder = tmp_path / "snapshots" / span["id"]
            for name, record in records.items():
                kind = "gradients" if name.endswith(".grad") else "weights"
                assert record["blob_uri"] == f"file://{folder}/{kind}.safetensors"
                with safe_open(path_of(record), framework="pt") as file:
                    assert file.get_tensor(name).equal(truth[name])
            assert stat.S_IMODE(path_of(record).stat().st_mode) == 0o600

    def test_reading_program_of_the_schemas_page_runs_unchanged(
        self, scripts: ForkedScripts, tmp_path: Path
    ) -> None:
        with opened(tmp_path / ".cirron", snapshots="full"):
            train(ci.watch(model()))
        assert scripts.text(PROGRAM, tmp_path).stdout.count("epoch ") == 2

    @pytest.mark.parametrize(("rate", "mode"), [(0.0, "stats"), (1.0, "sampled")])
    def test_sampled_stores_the_epochs_that_win(
        self, rate: float, mode: str, tmp_path: Path
    ) -> None:
        with opened(tmp_path, snapshots="sampled", sample_rate=rate):
            train(ci.watch(model()))
        see_it_is_right(tmp_path)
        assert {record["mode"] for record in snapshots(tmp_path)} == {mode}
        assert all((r["blob_uri"] is None) == (mode == "stats") for r in snapshots(tmp_path))

    def test_who_loses_the_roll_stays_stats(self, tmp_path: Path) -> None:
        rolls = iter([0.3, 0.1, 0.2])
        with opened(tmp_path, snapshots="sampled", sample_rate=0.2) as profiler:
            assert profiler.runtime is not None
            profiler.runtime.snapshots._roll = lambda: next(rolls)  # type: ignore[union-attr]
            train(ci.watch(model()), 3)
        modes = [{each["mode"] for each in records.values()} for records in by_epoch(tmp_path)]
        assert modes == [{"stats"}, {"sampled"}, {"stats"}]

    def test_a_batch_never_names_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        missing: list[str] = []
        looked = 0
        is_over = threading.Event()

        def look() -> None:
            nonlocal looked
            is_last = False
            while not is_last:
                is_last = is_over.wait(0.002)
                for record in snapshots(tmp_path):
                    if record["blob_uri"] is None:
                        continue  # too many wait
                    looked += 1
                    with safe_open(path_of(record), framework="pt") as file:
                        if record["tensor_name"] not in file.keys():  # noqa: SIM118
                            missing.append(record["tensor_name"])

        thread = threading.Thread(target=look)
        thread.start()
        try:
            with opened(tmp_path, snapshots="full", flush_interval=0.005):
                train(ci.watch(model(3_000)), 40)
        finally:
            is_over.set()
            thread.join()
        assert looked > 0
        assert missing == []
        assert len(snapshots(tmp_path)) == 320

    def test_flush_waits_for_the_files(self, tmp_path: Path) -> None:
        with opened(tmp_path, snapshots="full", flush_interval=60.0):
            train(ci.watch(model(20_000)), 1)
            assert ci.flush()
            assert len(snapshots(tmp_path)) == 8
            assert all(path_of(record).exists() for record in snapshots(tmp_path))

    def test_dtype_unsupported_by_safetensors_is_recorded_as_stats_only(
        self, tmp_path: Path
    ) -> None:
        watched = ci.watch(torch.nn.ParameterDict(
            {"a": torch.ones(2), "b": torch.ones(2, dtype=torch.complex128)}
        ))  # fmt: skip
        with opened(tmp_path, snapshots="full"):
            for _ in ci.epochs(range(1)):
                pass
        see_it_is_right(tmp_path)
        (records,) = by_epoch(tmp_path)
        assert (records["a"]["mode"], records["b"]["mode"]) == ("full", "stats")
        assert records["b"]["attrs"] == {"statistics_of": "magnitude", "not_stored": True}
        del watched


class TestTraining:
    def losses(self, directory: Path | None, mode: str | None) -> Any:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        net = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
        )
        optimizer = torch.optim.Adam(net.parameters())

        def work() -> list[float]:
            losses = []
            for _ in ci.epochs(range(20)):
                for _ in range(10):
                    optimizer.zero_grad()
                    loss = (
                        net(torch.randn(5, 4)).square().mean() + random.random() * np.random.rand()
                    )
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
            return losses

        if directory is None:
            losses = work()
        else:
            with opened(directory, snapshots=mode, sample_rate=0.5):
                ci.watch(net)
                losses = work()
        told = {name: each.detach().clone() for name, each in net.state_dict().items()}
        return losses, told, random.random(), np.random.rand(), torch.rand(1).item()

    @pytest.mark.parametrize("mode", ["stats", "sampled", "full"])
    def test_losses_weights_and_generators_are_bit_identical(
        self, mode: str, tmp_path: Path
    ) -> None:
        plain = self.losses(None, None)
        traced = self.losses(tmp_path, mode)
        assert len(snapshots(tmp_path)) == 20 * 8
        assert traced[0] == plain[0]
        assert traced[2:] == plain[2:]
        for name, value in plain[1].items():
            assert traced[1][name].equal(value)

    def test_snapshot_time_counts_as_sdk_overhead(self, tmp_path: Path) -> None:
        with opened(tmp_path) as profiler:
            train(ci.watch(model(50_000)), 2)
        seconds = profiler.health()["snapshots"]["seconds"]
        assert seconds > 0
        assert profiler.health()["overhead_ns"] >= seconds * 1e9 * 0.999
        for record in epochs(tmp_path):
            own = [m["value"] for b in batches(tmp_path) for m in b["marks"]
                   if m["span_id"] == record["id"]]  # fmt: skip
            assert sum(own) < seconds * 1e9  # it is not the epoch's: that was over

    def test_importing_the_package_or_taking_no_snapshot_imports_no_torch(
        self, tmp_path: Path
    ) -> None:
        program = (
            "import sys, cirron_otel as ci\n"
            f"ci.profile(output_dir={str(tmp_path)!r}, frameworks=[])\n"
            "class Model: pass\n"
            "model = ci.watch(Model())\n"
            "for _ in ci.epochs(range(2)): pass\n"
            "assert ci.shutdown()\n"
            "assert 'torch' not in sys.modules and 'safetensors' not in sys.modules\n"
        )
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
