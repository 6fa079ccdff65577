"""Runs the programs of all frameworks with cirron-sdk, and writes docs/trainers-conformance.md.

    python -m tests.system.frameworks.matrix [--all] [MODULE...]

MODULE is a module of `tests.system.frameworks.programs`; without one, all are run. `none` only
writes the page. The results are kept in
tests/testdata/trainers-conformance.json, so that the test that the page is up to date needs
no other tool. A program is run again if it has changed, or with `--all`.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import inspect
import json
import pkgutil
import re
import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tests.kit.environments import EnvironmentUnavailableError
from tests.kit.program_server import ProgramError
from tests.sdk.instrumentation.torch.judging import dissolve, judge, without
from tests.sdk.instrumentation.torch.peers import CIRRON_SDK
from tests.sdk.instrumentation.torch.trees import (
    Node,
    folded,
    parse,
    read,
)

from . import Program, programs
from .environments import ENVIRONMENTS
from .matrix_page import NO_HOOKS, PAGE, page
from .running import Worker
from .running import server as process

Change = Callable[[Node], None]
STORED = Path(__file__).parents[2] / "testdata" / "trainers-conformance.json"
ELSE, NOT_RUN = "computes something else", "not run yet"
SCOPES = ("checkpoint", "prepare", "prefill", "decode")
"""Scopes that cirron-sdk does not have, and that are left out of the comparison."""
_FURTHER = {
    "keras_tensorflow": ("train_step", "data_load", "forward", "backward", "optimizer_step"),
    "sklearn": (
        "fold", "partial_fit", "step", "fit_predict", "decision_function", "cross_validate",
        "cross_val_score", "cross_val_predict", "learning_curve",
    ),
}  # fmt: skip
"""Further scopes that cirron-sdk does not have with the framework of a module."""
_NO_HOOKS = ("loggers", "ray_jobs")
"""The modules of frameworks into which cirron-sdk has no hooks."""
_IMPORTS = {
    "accelerate_loops": ("torch", "torch._dynamo", "accelerate", "accelerate.accelerator"),
    "generation": ("torch", "transformers.generation", "transformers.models.gpt2.modeling_gpt2"),
    "pairs": (
        "torch",
        "transformers",
        "transformers.trainer",
        "tests.system.frameworks.programs.on_torch",
    ),
    "keras_tensorflow": ("tests.system.frameworks.programs.on_tensorflow", "tensorflow", "keras"),
    "keras_torch": ("tests.system.frameworks.programs.on_torch", "torch", "keras"),
    "lightning_trainer": ("torch", "lightning.pytorch", "pytorch_lightning"),
    "transformers_trainer": ("torch", "transformers", "transformers.trainer"),
    "trl_trainers": ("torch", "transformers", "transformers.trainer"),
}
"""Modules that are imported once, before the programs of a module run."""
_ENVIRONMENTS = {
    "keras_tensorflow": "tensorflow",
    "on_tensorflow": "tensorflow",
    "ray_jobs": "ray",
    "sklearn": "sklearn",
    "trl_trainers": "trl",
}
"""The names in ENVIRONMENTS of the packages that the tests' own environment lacks."""
_PACKAGES = ("torch", "transformers", "accelerate", "lightning", "keras")
_PINNED = {
    "ray": ("ray",),
    "sklearn": ("lightgbm", "scikit-learn", "xgboost-cpu"),
    "tensorflow": ("tensorflow_cpu",),
    "trl": ("trl",),
}
"""Packages of ENVIRONMENTS whose versions the page states."""


def every() -> dict[str, dict[str, Program]]:
    """Return all programs by module and name."""
    found = {}
    for each in pkgutil.iter_modules(programs.__path__):
        module = importlib.import_module(f"tests.system.frameworks.programs.{each.name}")
        if hasattr(module, "PROGRAMS"):
            found[each.name] = dict(module.PROGRAMS)
    return found


def digest(program: Program) -> str:
    """Identify a program and its tree; its results are stored with this."""
    text = inspect.getsource(program.run).replace(program.title, "", 1) + program.tree
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stored() -> dict[str, Any]:
    """Return the results of the last run: `versions`, and `programs` by `<module>.<name>`."""
    if not STORED.exists():
        return {"versions": {}, "programs": {}}
    results: dict[str, Any] = json.loads(STORED.read_text())
    return results


def main() -> None:
    """Run the programs whose results are missing, store the results, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("modules", nargs="*")
    arguments = parser.parse_args()
    modules, before = every(), stored()["programs"]
    results: dict[str, Any] = {}
    for module, members in modules.items():
        chosen = not arguments.modules or module in arguments.modules
        outdated = []
        for name, program in members.items():
            key = f"{module}.{name}"
            stale = {"digest": digest(program), "reason": NOT_RUN}
            results[key] = before.get(key, stale)
            if results[key]["digest"] != digest(program) or (chosen and arguments.all):
                results[key] = stale
            if chosen and results[key].get("reason") == NOT_RUN:
                outdated.append(program)
        results |= _run(module, outdated) if outdated else {}
    _write(modules, results)
    right = sum(bool(result.get("right")) for result in results.values())
    print(f"{len(results)} programs; cirron-sdk gives {right} of the trees")


def _write(modules: dict[str, dict[str, Program]], results: dict[str, Any]) -> None:
    content = {"versions": _versions(), "programs": results}
    STORED.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(page(modules, content))


def _versions() -> dict[str, str]:
    found = {"cirron-sdk": "0.3.0"}
    for package in _PACKAGES:
        try:
            found[package] = version(package).partition("+")[0]
        except PackageNotFoundError:
            continue
    for name, packages in _PINNED.items():
        pins = ENVIRONMENTS[name].pins.read_text()
        for package in packages:
            if match := re.search(rf"^{package}==(\S+)", pins, re.MULTILINE):
                found[package] = match[1]
    return found


def _run(module: str, outdated: list[Program]) -> dict[str, Any]:
    """Run programs of a module; return their results."""
    if module in _NO_HOOKS:
        return {f"{module}.{each.name}": _not_run(each, NO_HOOKS) for each in outdated}
    try:
        python = CIRRON_SDK.make()
        environment = ENVIRONMENTS.get(_ENVIRONMENTS.get(module, ""))
        if environment is not None:
            environment.make()
    except EnvironmentUnavailableError as error:
        return {f"{module}.{each.name}": _not_run(each, str(error)) for each in outdated}
    bare_python = environment.python if environment is not None else None
    paths = (environment.site_packages,) if environment is not None else ()
    results = {}
    left_out = [dissolve(*SCOPES, *_FURTHER.get(module, ()))]
    imports = _IMPORTS.get(module, ())
    with (
        tempfile.TemporaryDirectory() as parent,
        process(imports, bare_python) as bare_server,
        process(imports, python, paths) as server,
    ):
        bare = Worker(bare_server, module, "untraced")
        traced = Worker(server, module, "cirron-sdk")
        for program in outdated:
            directory = Path(parent, program.name)
            result = _result(program, bare, traced, directory, left_out)
            results[f"{module}.{program.name}"] = {"digest": digest(program), **result}
            print(f"{module}.{program.name}: {result}"[:200], flush=True)
            shutil.rmtree(directory, ignore_errors=True)
    return results


def _not_run(program: Program, reason: str) -> dict[str, Any]:
    return {"digest": digest(program), "reason": reason}


def _result(
    program: Program, bare: Worker, traced: Worker, directory: Path, left_out: list[Change]
) -> dict[str, Any]:
    """Return whether cirron-sdk's tree is right, notes, what it raised, and the first tree.

    `left_out` removes the scopes that cirron-sdk does not have.
    """
    try:
        computed = [each["result"] for each in bare.run(program, directory / "bare")]
    except ProgramError as error:
        return {"reason": str(error).splitlines()[-1]}
    wrong: dict[str, Any] = {"right": False, "notes": [], "tree": []}
    try:
        outcomes = traced.run(program, directory / "traced")
    except ProgramError as error:
        return wrong | {"raised": str(error).splitlines()[-1]}
    raised = [each["error"] for each in outcomes if each["error"] != program.error]
    if raised:
        return wrong | {"raised": raised[0]}
    recorded = read(directory / "traced" / ".cirron")
    if len(recorded) != program.ranks:
        return wrong | {"notes": [f"trees of {len(recorded)} ranks, not {program.ranks}"]}
    expected = without(parse(program.tree), left_out)
    verdicts = [judge(expected, without(found.root, left_out)) for found in recorded.values()]
    worst = min(verdicts, key=lambda verdict: verdict.is_right)
    notes = list(worst.notes)
    if orphans := max(len(found.orphans) for found in recorded.values()):
        notes.append(f"{orphans} scopes without their parent")
    if [each["result"] for each in outcomes] != computed:
        notes.append(ELSE)
    tree = folded([next(iter(recorded.values())).root])
    return {"right": notes == worst.notes and worst.is_right, "notes": notes, "tree": tree}


if __name__ == "__main__":
    main()
