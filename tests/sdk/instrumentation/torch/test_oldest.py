"""The oldest torch that is supported, in its own environment."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.kit.environments import SITE_PACKAGES
from tests.kit.sessions.spool_trees import read_spool

from .environments import (
    OLDEST,
    OLDEST_VERSION,
    ROOT,
    run_in_oldest,
)

pytestmark = pytest.mark.usefixtures("oldest_torch")

LEFT_OUT = {"nvidia-cuda-nvrtc-cu12", "nvidia-cusolver-cu12", "nvidia-nvtx-cu12", "triton"}
"""What that torch asks for and only a GPU uses: see the pins."""

TRAINING = """
import sys, torch, cirron_otel
cirron_otel.profile(output_dir=sys.argv[1], frameworks=["torch"], quiet=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.ones(6, 4), batch_size=2)
for epoch in cirron_otel.epochs(range(2)):
    for batch in cirron_otel.batches(loader):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        cirron_otel.mark("loss", loss)
cirron_otel.shutdown()
print(torch.__version__.split("+")[0])
"""


def test_it_is_the_lowest_that_the_extra_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["optional-dependencies"]["torch"]
    (requirement,) = [r for r in map(Requirement, lines) if r.name == "torch"]
    (lowest,) = requirement.specifier
    assert (lowest.operator, lowest.version) == (">=", ".".join(OLDEST_VERSION.split(".")[:2]))


def test_oldest_environment_lacks_only_gpu_dependencies_of_torch() -> None:
    done = run_in_oldest(["-m", "pip", "check"])
    missing = [line.split() for line in done.stdout.splitlines() if "requires" in line]
    assert {words[3].rstrip(",") for words in missing} <= LEFT_OUT, done.stdout
    assert all(words[0] == "torch" for words in missing)


def test_oldest_environment_differs_from_the_tests_only_in_torch() -> None:
    own = {
        d.name.lower(): d.version
        for d in importlib.metadata.distributions(path=[str(SITE_PACKAGES)])
    }
    other = importlib.metadata.distributions(path=[str(OLDEST.site_packages)])
    differing = {d.name.lower() for d in other if own.get(d.name.lower(), d.version) != d.version}
    assert differing <= {"torch", "sympy", "mpmath", "pip", "triton"}


def test_a_run_is_traced(tmp_path: Path) -> None:
    done = run_in_oldest(["-c", TRAINING, tmp_path])
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, OLDEST_VERSION, "")
    session = read_spool(tmp_path).session
    assert len(session.find("epoch")) == 2, [node.name for node in session.children]


SNAPSHOTS = ["tests/sdk/snapshots", "--ignore=tests/sdk/snapshots/digests"] + [
    f"--ignore=tests/sdk/snapshots/test_{name}.py" for name in ("onward", "devices")
]
"""Without what needs grpc (batches are sent onwards in the same way with every torch), and without
the tests with pretended CUDA tensors, which torch 2.6 cannot slice without a driver."""
HOOKS = [
    f"tests/sdk/instrumentation/torch/test_{name}.py"
    for name in ("conformance", "compilations", "truth")
]
HOOKS += ["-k", "not stateful"]
"""Without the loops over torchdata's loader, which that environment has not."""

DIGESTS = ["tests/sdk/snapshots/digests/test_hostile.py"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "tests", [SNAPSHOTS, HOOKS, DIGESTS], ids=["snapshots", "hooks", "digests"]
)
def test_the_tests_pass_with_it(tests: list[str]) -> None:
    options = ["-q", "-p", "no:cacheprovider", "--timeout=300"]
    done = run_in_oldest(["-m", "pytest", *options, *tests], timeout=500)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
