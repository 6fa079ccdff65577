"""The fixture `cirron_run`, tested in separate runs of pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.forked_scripts import ForkedScripts
from tests.tools.conftest import PLUGIN, environment

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]

TRAINING = """
import pytest
import cirron_otel as ci


def train(epochs):
    for epoch in ci.epochs(range(epochs)):
        for batch in ci.batches([1, 2, 3]):
            with ci.scope("forward"):
                loss = 1 / (1 + epoch + batch)
            ci.mark("loss", loss)
        ci.mark("nothing", float("nan"), kind="summary")


def test_tree(cirron_run):
    train(2)
    assert cirron_run.tree() == '''
cirron.session
  epoch × 2
    step × 3
      forward
'''.strip()
    first = cirron_run.spans("step")[0]
    assert (first.index, first.parent.name, first.parent.index) == (0, "epoch", 0)
    assert [child.name for child in first.children] == ["forward"]
    assert first.mark("loss") == 0.5
    assert first.duration_ns >= first.children[0].duration_ns
    assert len(cirron_run.marks("loss")) == 6
    assert cirron_run.marks("loss")[:2] == [1 / 2, 1 / 3]
    assert cirron_run.spans("epoch")[0].mark("nothing") != 0
    assert cirron_run.span("cirron.session").error is None
    with pytest.raises(AssertionError, match="2 spans are named 'epoch'; recorded: cirron.session"):
        cirron_run.span("epoch")
    with pytest.raises(KeyError):
        first.mark("accuracy")


def test_each_test_has_a_run_of_its_own(cirron_run, tmp_path):
    train(1)
    assert cirron_run.directory.parent == tmp_path
    assert len(cirron_run.spans("epoch")) == 1
    [run] = ci.runs(cirron_run.directory)
    assert run.name == "test_each_test_has_a_run_of_its_own"


def test_failure(cirron_run):
    with pytest.raises(ValueError), ci.scope("validate"):
        raise ValueError("no number")
    assert cirron_run.span("validate").error == "ValueError: no number"


@pytest.mark.cirron_run(cpu_time=True)
def test_options(cirron_run):
    with ci.scope("measured"):
        pass
    assert cirron_run.span("measured").record["cpu_ns"] is not None


def test_a_program_that_traces_itself(cirron_run):
    assert ci.profile(output_dir="elsewhere") is cirron_run.profiler
    train(1)
    ci.shutdown()
    assert len(cirron_run.spans("step")) == 3


def test_processes(cirron_run):
    import subprocess, sys
    code = "import cirron_otel as ci; ci.profile()\\nwith ci.scope('child'): pass\\nci.shutdown()"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert cirron_run.span("child").parent.name == "cirron.session"


def test_nothing_is_sent(cirron_run):
    train(1)
    cirron_run.finish()
    health = cirron_run.profiler.health()
    assert (health["targets"], health["metrics"]) == ([], None)
"""


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run pytest in a process of its own, with the plugin registered as in an installation."""
    return pytester.runpytest_subprocess(*arguments)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    if "PYTEST_PLUGINS" in (variables := environment()):
        monkeypatch.setenv("PYTEST_PLUGINS", variables["PYTEST_PLUGINS"])


def test_it_records_and_gives_the_spans_back(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    pytester.makepyfile(TRAINING)
    run(pytester, "--strict-markers").assert_outcomes(passed=TRAINING.count("\ndef test_"))
    assert not (pytester.path / ".cirron").exists()
    assert not (pytester.path / "elsewhere").exists()


LOOP = """
import torch

def train():
    model, criterion = torch.nn.Linear(8, 2), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(2, (64,)))
    for epoch in range(2):
        for inputs, labels in torch.utils.data.DataLoader(data, batch_size=16):
            loss = criterion(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def check(run):
    train()
    assert [span.index for span in run.spans("epoch")] == [0, 1]
    for name in ("step", "forward", "backward", "optimizer_step"):
        assert len(run.spans(name)) == 8, run.tree()


def test_a_loop_of_torch(cirron_run):
    check(cirron_run)


def test_the_next_test_records_its_own(cirron_run):
    check(cirron_run)
"""

RUN = """
import sys
import pytest

sys.exit(pytest.main(["-p", "no:cacheprovider", "--basetemp=temporary", sys.argv[1]]))
"""


@pytest.mark.torch
def test_it_records_loops_of_torch(pytester: pytest.Pytester, scripts: ForkedScripts) -> None:
    done = scripts.text(RUN, pytester.path, pytester.makepyfile(LOOP))
    assert pytest.RunResult.parse_summary_nouns(done.stdout.splitlines()) == {"passed": 2}


def test_a_session_that_is_open_already_is_named(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import cirron_otel as ci\nci.profile(output_dir='outer')")
    pytester.makepyfile("def test_it(cirron_run): pass")
    result = run(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["a session is open already: Profiler(open*shutdown()*"])


def test_a_run_that_does_not_use_it_imports_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            loaded = {name for name in sys.modules if name.startswith(("cirron_otel", "torch"))}
            assert loaded == {"cirron_otel", "cirron_otel._version", "cirron_otel.pytest_plugin"}
            assert not {"opentelemetry", "msgspec"} & set(sys.modules)
        """
    )
    run(pytester).assert_outcomes(passed=1)


def test_it_is_registered() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"cirron_otel": PLUGIN}
