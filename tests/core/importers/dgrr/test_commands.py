"""`cirron-otel dgrr`: results and exit codes of every command."""

from __future__ import annotations

import json
import math
import struct
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.importers.dgrr.training import KahanSum, SplitMix64, samples
from tests.tools.conftest import environment

from .traces import (
    ANSWERS,
    CLEAN,
    DAMAGED,
    DRIFT,
    NAN,
    RECORDINGS,
    SMALL,
    chain,
    command,
    dgrr,
    record,
    trace,
)

EXAMPLE = RECORDINGS / "readme_example.dgrr"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, in which a trace is written at a fixed time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    return tmp_path


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_the_worked_step_of_the_page(folder: Path) -> None:
    """x = 2, y = 3, w = 0.5, b = 0.1 and α = 0.01."""
    from cirron_otel.core.importers.dgrr.training import gradients, updated

    grad_w, grad_b, loss = gradients(2.0, 3.0, 0.5, 0.1)
    assert (grad_w, grad_b) == (-7.6, -3.8)
    assert math.isclose(loss, 1.9**2, rel_tol=1e-15)
    assert updated(0.5, grad_w, 0.01) == pytest.approx(0.576, rel=1e-15)
    assert updated(0.1, grad_b, 0.01) == pytest.approx(0.138, rel=1e-15)
    assert dgrr("replay", "--step", 0, "--trace", EXAMPLE)[0] == 0
    _, document = dgrr("inspect", "--step", 0, "--trace", EXAMPLE)
    expected = ANSWERS["files"]["readme_example.dgrr"]["expect"]
    for name in ("w_after", "b_after", "grad_w", "grad_b"):
        assert document["fields"][name] == pytest.approx(expected[name], rel=1e-15)


def test_training_is_the_page_s_in_doubles(folder: Path) -> None:
    code, document = dgrr("train", "--steps", 300, "--lr", 0.05, "--seed", 11)
    assert code == 0
    data = (folder / "trace.dgrr").read_bytes()
    w = b = 0.0
    losses = []
    for number, (x, y) in enumerate(islice(samples(11), 300)):
        stored = struct.unpack_from("<Q7d", data, 64 + 72 * number)
        error = w * x + b - y
        grad_w, grad_b = 2 * error * x, 2 * error
        after = (w - 0.05 * grad_w, b - 0.05 * grad_b)
        assert stored == (number, w, b, grad_w, grad_b, *after, error * error)
        w, b = after
        losses.append(error * error)
    assert (document["w"], document["b"]) == (w, b)
    assert document["mean_loss"] == float(sum(map(Fraction, losses))) / 300
    assert abs(w - 2) < 0.2
    assert abs(b - 1) < 0.2


def test_the_generator_is_splitmix64() -> None:
    """The first outputs of the published algorithm for the seed 1234567."""
    generator = SplitMix64(1234567)
    assert [generator.next_u64() for _ in range(5)] == [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431,
        16408922859458223821,
    ]  # fmt: skip
    numbers = [SplitMix64(seed).next_symmetric() for seed in range(1_000)]
    assert -1 <= min(numbers) < -0.99
    assert 0.99 < max(numbers) < 1


def test_a_compensated_sum_loses_less() -> None:
    total = KahanSum()
    numbers = [0.1] * 100_000
    for each in numbers:
        total.add(each)
    exact = sum(map(Fraction, numbers))
    assert total.total == float(exact) != sum_of(numbers)


def sum_of(numbers: list[float]) -> float:
    plain = 0.0
    for each in numbers:
        plain += each
    return plain


def test_the_same_seed_gives_the_same_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {}
    for name, seed, now in (("a", 5, "1"), ("b", 5, "1"), ("c", 5, "2"), ("d", 6, "1")):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", now)
        assert dgrr("train", "--seed", seed, "--out", name)[0] == 0
        files[name] = (folder / name).read_bytes()
        assert dgrr("verify", name)[0] == 0
    assert files["a"] == files["b"]
    assert files["a"][:40] + files["a"][48:] == files["c"][:40] + files["c"][48:]
    assert files["a"] != files["c"]
    assert files["a"][64:] != files["d"][64:]
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert dgrr("train", "--seed", 5, "--out", "e")[0] == 0
    assert (folder / "e").read_bytes()[64:] == files["a"][64:]


@pytest.mark.parametrize("steps", [0, 1, 2_000])
def test_a_training_of_any_length_is_valid(steps: int, folder: Path) -> None:
    seed = 2**64 - 1
    assert dgrr("train", "--steps", steps, "--seed", seed)[0] == 0
    assert dgrr("verify", "trace.dgrr")[1]["records"] == steps
    assert struct.unpack_from("<QQ", (folder / "trace.dgrr").read_bytes(), 8) == (seed, steps)
    replayed = {"replayed": steps, "failed": 0, "step": None, "fields": {}}
    assert dgrr("replay", "--step", "all") == (0, replayed)


def test_a_training_that_diverges_is_written(folder: Path) -> None:
    assert dgrr("train", "--lr", 1e200, "--steps", 20)[1]["w"] == "nan"
    assert dgrr("verify", "trace.dgrr")[0] == 0
    assert dgrr("replay", "--step", "all")[0] == 0


def test_replay_finds_a_step_that_was_computed_otherwise(folder: Path) -> None:
    records = [record(0, 1.0, 0.0, 2.0, 0.0, 0.0, 0.0, 1.0),
               record(1, 0.0, 0.0, 2.0, 0.0, math.nextafter(-1.0, 0), 0.0, 1.0)]  # fmt: skip
    write(folder / "trace.dgrr", trace(records, rate=0.5))
    difference = {"w_after": {"stored": -0.9999999999999999, "replayed": -1.0, "ulp": 1}}
    for step, replayed in ((1, 1), ("all", 2)):
        document = {"replayed": replayed, "failed": 1, "step": 1, "fields": difference}
        assert dgrr("replay", "--step", step) == (5, document)
    assert dgrr("replay", "--step", 0)[0] == 0
    assert dgrr("replay", "--step", "all", "--ulp-tol", 1)[0] == 0
    code, out, _ = command("dgrr", "replay", "--step", "all")
    assert code == 5
    assert "step 1 differs from its replay" in out
    assert "w_after: 1 ULP" in out


@pytest.mark.parametrize("case", ANSWERS["compare"], ids=lambda case: str(case["ulp_tol"]))
def test_the_comparisons_of_the_testdata(case: dict[str, Any]) -> None:
    a, b = RECORDINGS / case["a"], RECORDINGS / case["b"]
    code, document = dgrr("compare", "--a", a, "--b", b, "--ulp-tol", case["ulp_tol"])
    assert code == (4 if case["diverged"] else 0)
    fields = {
        name: {"a": float(each["a"]), "b": float(each["b"]), "ulp": each["ulp"]}
        for name, each in case.get("fields", {}).items()
    }
    step = case.get("first_step_index")
    assert document == {"diverged": case["diverged"], "step": step, "fields": fields}
    _, out, _ = command("dgrr", "compare", "--a", a, "--b", b, "--ulp-tol", case["ulp_tol"])
    for each in case.get("fields", {}).values():
        assert each["a_bits"] in out
        assert each["b_bits"] in out
        assert f"{each['ulp']} ULP" in out


def test_gradients_are_not_compared_and_nans_are_equal(folder: Path) -> None:
    a = write(folder / "a", trace([record(1, 0, 0, 1, 1, NAN, 0.0, float("nan"))]))
    b = write(folder / "b", trace([record(1, 0, 0, 2, 3, float("nan"), -0.0, NAN)]))
    assert dgrr("compare", "--a", a, "--b", b)[0] == 0
    c = write(folder / "c", trace([record(1, 0, 0, 2, 3, 1e300, -0.0, NAN)]))
    difference = {"w_after": {"a": "nan", "b": 1e300, "ulp": None}}
    expected = {"diverged": True, "step": 1, "fields": difference}
    assert dgrr("compare", "--a", a, "--b", c, "--ulp-tol", 2**64 - 1) == (4, expected)


@pytest.mark.parametrize(("length", "whole"), [(40, 50), (0, 1), (910, 911), (1_820, 2_000)])
def test_a_prefix_diverges_after_its_last_step(length: int, whole: int, folder: Path) -> None:
    records = chain(whole, 1)
    a = write(folder / "a", trace(records[:length]))
    b = write(folder / "b", trace(records))
    for one, other in ((a, b), (b, a)):
        expected = {"diverged": True, "step": length + 1, "fields": {}}
        assert dgrr("compare", "--a", one, "--b", other) == (4, expected)
    assert "which only b has" in command("dgrr", "compare", "--a", a, "--b", b)[1]


def test_inspect_shows_the_record_and_its_bits() -> None:
    code, document = dgrr("inspect", "--step", 50, "--trace", DAMAGED)
    assert code == 3
    assert document["record"] == 50
    assert document["findings"] == ["record_crc32"]
    assert not document["valid"]
    stored = struct.unpack_from("<Q7dII", DAMAGED.read_bytes(), 64 + 50 * 72)
    assert tuple(document["fields"].values()) == stored
    assert document["bits"]["loss"] == struct.pack(">d", stored[7]).hex()
    code, out, problems = command("dgrr", "inspect", "--step", 49, "--trace", DAMAGED)
    assert code == 3
    assert "record_crc32" in out
    assert "record 50: record_crc32 is" in problems
    assert dgrr("inspect", "--step", 49, "--trace", CLEAN)[0] == 0


def test_rollback_restores_the_parameters_prior_to_a_step(folder: Path) -> None:
    assert dgrr("train")[0] == 0
    before = (folder / "trace.dgrr").read_bytes()
    code, document = dgrr("rollback", "--step", 40, "--out", "back.dgrr")
    w, b = struct.unpack_from("<dd", before, 64 + 40 * 72 + 8)
    assert (code, document["w"], document["b"], document["records"]) == (0, w, b, 40)
    assert dgrr("verify", "back.dgrr")[1] == {"valid": True, "records": 40, "findings": []}
    back = (folder / "back.dgrr").read_bytes()
    assert back[64:] == before[64 : 64 + 40 * 72]
    assert back[:16] + back[40:64] == before[:16] + before[40:64]
    assert (folder / "trace.dgrr").read_bytes() == before
    code, _, problems = command("dgrr", "rollback", "--step", 40, "--out", "./trace.dgrr")
    assert code == 1
    assert "is the trace" in problems
    (folder / "link").symlink_to("trace.dgrr")
    assert dgrr("rollback", "--step", 40, "--out", "link")[0] == 1
    assert (folder / "trace.dgrr").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "--lr", "much"), "'much' is not a valid float"),
        (("train", "--lr", "nan"), "--lr is nan: expected a finite number"),
        (("train", "--seed", 2**64), "is not in the range"),
        (("train", "--steps", -1), "is not in the range"),
        (("train", "--out", "-", "--json"), "both write to standard output: name a file"),
        (("rollback", "--step", 4, "--trace", CLEAN, "--out", "-", "--json"), "name a file"),
        (("train", "--out", ""), "--out is empty: name a file"),
        (("rollback", "--step", 4, "--trace", CLEAN, "--out", ""), "--out is empty: name a file"),
        (("verify", ""), "the path of the trace is empty: name a file"),
        (("replay", "--step", "all", "--trace", ""), "the path of the trace is empty"),
        (("compare", "--a", "-", "--b", "-"), "are both -: name a file for one of them"),
        (("replay",), "Missing option '--step'"),
        (("replay", "--step", "x"), "is not a step id"),
        (("replay", "--step", 100, "--trace", CLEAN), "no step 100: it has the steps 0 to 99"),
        (("inspect", "--step", 100, "--trace", CLEAN), "no step 100"),
        (("rollback", "--step", 100, "--trace", CLEAN), "no step 100"),
        (("compare", "--a", CLEAN), "Missing option '--b'"),
        (("verify",), "Missing argument 'PATH'"),
        (("verify", CLEAN, "--ulp-tol", 1), "No such option"),
        (("fly",), "No such command 'fly'"),
    ],
)
def test_wrong_usage_is_exit_code_1(
    arguments: tuple[object, ...], message: str, folder: Path
) -> None:
    code, out, problems = command("dgrr", *arguments)
    assert code == 1
    assert message in problems
    assert problems.count("\n") == 1
    assert not out
    assert not list(folder.iterdir())


def test_other_commands_keep_their_exit_code_for_wrong_usage() -> None:
    assert command("spool", "fly")[0] == 2
    assert command("fly")[0] == 2


def test_a_wrong_time_is_wrong_usage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("", "now", "-1", str(2**64), "٣"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", wrong)
        assert command("dgrr", "train")[0] == 1
    assert not list(folder.iterdir())


_READERS = (
    ("replay", "--step", 0, "--trace"), ("inspect", "--step", 0, "--trace"),
    ("rollback", "--step", 0, "--out", "back.dgrr", "--trace"), ("verify",),
    ("compare", "--b", CLEAN, "--a"), ("compare", "--a", CLEAN, "--b"),
)  # fmt: skip


@pytest.mark.parametrize("arguments", _READERS, ids=lambda each: f"{each[0]}-{each[-1]}")
def test_unreadable_files_are_exit_code_2(arguments: tuple[object, ...], folder: Path) -> None:
    for path in (folder / "absent", folder, "/dev/zero", "a\0b"):
        code, out, problems = command("dgrr", *arguments, path)
        assert code == 2, path
        assert "cannot be read" in problems
        assert problems.count("\n") == 1
        assert not out
    assert not (folder / "back.dgrr").exists()


@pytest.mark.parametrize("arguments", _READERS, ids=lambda each: f"{each[0]}-{each[-1]}")
def test_invalid_traces_are_exit_code_3(arguments: tuple[object, ...], folder: Path) -> None:
    big_endian = b"DGRR" + struct.pack(">HHQQdIIQ16s", 1, 0, 7, 2, 0.5, 0, 0, 0, b"")
    cases = {
        b"": "empty",
        b"DGRR": "ends after 4 bytes",
        big_endian + SMALL[64:]: "big-endian",
        b"RIFF" + SMALL[4:]: "expected DGRR",
        SMALL[:63]: "_reserved",
        SMALL[:-1]: "step_count",
        SMALL + b"\0": "step_count",
        trace(chain(2), count=2**60): "step_count",
        DAMAGED.read_bytes(): "record_crc32",
    }
    for data, message in cases.items():
        path = write(folder / "bad.dgrr", data)
        code, out, problems = command("dgrr", *arguments, path)
        assert code == 3, message
        assert message in out + problems
        if arguments[0] not in ("verify", "inspect"):
            assert problems.count("\n") == 1
            assert not out
    assert not (folder / "back.dgrr").exists()


def test_an_unwritable_target_is_exit_code_2(folder: Path) -> None:
    write(folder / "trace.dgrr", CLEAN.read_bytes())
    for target in (folder / "absent" / "x", folder, "/dev/full", "/proc/x"):
        for arguments in (("train", "--steps", 2_000), ("rollback", "--step", 90)):
            code, out, problems = command("dgrr", *arguments, "--out", target)
            assert code == 2, target
            assert "cannot write" in problems
            assert problems.count("\n") == 1
            assert not out
    assert [path.name for path in folder.iterdir()] == ["trace.dgrr"]


def test_a_full_disk_leaves_no_half_written_target(folder: Path) -> None:
    """A limit of the file size stands for the disk: `train` needs 1.4 MB."""
    import resource
    import subprocess
    import sys

    program = Path(sys.executable).with_name("cirron-otel")
    (folder / "kept.dgrr").write_bytes(SMALL)
    done = subprocess.run(
        [program, "dgrr", "train", "--steps", "20000", "--out", "kept.dgrr"],
        cwd=folder, env=environment(TMPDIR=str(folder)), capture_output=True, text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000)),
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == ["kept.dgrr"]
    assert (folder / "kept.dgrr").read_bytes() == SMALL


def test_an_interrupted_training_leaves_nothing(folder: Path) -> None:
    import signal
    import subprocess
    import sys
    import time

    program = Path(sys.executable).with_name("cirron-otel")
    (folder / "temporary").mkdir()
    process = subprocess.Popen(
        [program, "dgrr", "train", "--steps", str(10**9), "--out", "t.dgrr"],
        cwd=folder, env=environment(TMPDIR=str(folder / "temporary")), stderr=subprocess.PIPE,
    )  # fmt: skip
    while not any(path.stat().st_size for path in folder.glob("temporary/*/records")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, problems = process.communicate(timeout=60)
    assert process.returncode == 130
    assert problems == b"cirron-otel: interrupted\n"
    assert not list(folder.glob("temporary/*"))
    assert [path.name for path in folder.iterdir()] == ["temporary"]


def test_a_full_standard_output_is_exit_code_2(folder: Path) -> None:
    import subprocess
    import sys

    program = Path(sys.executable).with_name("cirron-otel")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [program, "dgrr", "verify", str(CLEAN), "--json"],
            stdout=full, stderr=subprocess.PIPE, env=environment(), text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert "standard output cannot be written" in done.stderr


def test_verify_lists_every_finding() -> None:
    code, out, _ = command("dgrr", "verify", DAMAGED)
    assert code == 3
    assert out.splitlines()[-1].endswith("100 records, 2 findings")
    assert command("dgrr", "verify", CLEAN)[1].endswith("100 records, valid\n")
    document = json.loads(command("dgrr", "verify", DAMAGED, "--json")[1])
    assert document == {
        "valid": False,
        "records": 100,
        "findings": [
            {"check": "record_crc32", "record": 50}, {"check": "file_crc32", "record": None},
        ],
    }  # fmt: skip


def test_a_divergence_is_exit_code_4() -> None:
    assert command("dgrr", "compare", "--a", CLEAN, "--b", DRIFT)[0] == 4
