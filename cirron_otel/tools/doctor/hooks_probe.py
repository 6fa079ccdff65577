"""The program that runs two instrumented training steps in a separate process.

    python -P -m cirron_otel.tools.doctor.hooks_probe DIR

It prints one JSON document: the version and devices of torch, the names of the recorded scopes, and
the names in torch that removing the hooks did not restore.
"""

# ruff: noqa: PLC0415 - torch is imported only where it is needed

from __future__ import annotations

import json
import sys
from collections.abc import Container
from pathlib import Path
from typing import Any

_GLOBAL = "_global_"
"""The name prefix of torch's global hook tables, which apply to all modules or optimizers."""


def main(directory: str) -> None:
    """Report on torch, and on the effects of the hooks."""
    import torch

    import cirron_otel as ci

    report: dict[str, Any] = {"torch": torch.__version__, **_device(torch)}
    before = _callables()
    ci.profile(output_dir=directory, frameworks=["torch"])
    during = _changed(before)
    _train(torch)
    ci.shutdown()
    report["hooked"] = len(during)
    report["left"] = _unrestored(before, during)
    report["swallowed"] = ci.health()["swallowed_errors"]
    report["scopes"] = sorted(_recorded(Path(directory)))
    print(json.dumps(report))


def _device(torch: Any) -> dict[str, Any]:
    is_there = torch.cuda.is_available()
    return {
        "cuda_build": torch.version.cuda,
        "cuda": is_there,
        "devices": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
        if is_there
        else [],
    }


def _train(torch: Any) -> None:
    torch.set_num_threads(1)
    model, data = torch.nn.Linear(2, 1), torch.utils.data.TensorDataset(torch.ones(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (inputs,) in torch.utils.data.DataLoader(data, batch_size=2):
        model(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def _callables() -> dict[str, Any]:
    """Return the callables of torch's modules and of their classes, by name.

    For each global hook table, the value is the length of the table.
    """
    callables: dict[str, Any] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "torch" or not hasattr(module, "__dict__"):
            continue
        for attribute, value in list(vars(module).items()):
            if attribute.startswith(_GLOBAL) and hasattr(value, "__len__"):
                callables[f"{name}.{attribute}"] = len(value)
            elif callable(value):
                callables[f"{name}.{attribute}"] = value
            if isinstance(value, type) and value.__module__ == name:
                for each, inner in list(vars(value).items()):
                    if callable(inner) or isinstance(inner, staticmethod | classmethod):
                        callables[f"{name}.{attribute}.{each}"] = inner
    return callables


def _changed(before: dict[str, Any]) -> dict[str, Any]:
    """Return the current callables that differ from those in `before`."""
    return {
        name: value
        for name, value in _callables().items()
        if name in before and before[name] is not value
    }


def _unrestored(before: dict[str, Any], during: Container[str]) -> list[str]:
    """Return the names that removing the hooks did not restore.

    These are hook tables, callables that the hooks had replaced, and functions of this package.
    Other changed names are ignored, because torch itself sets some while it works.
    """
    return sorted(
        name
        for name, value in _changed(before).items()
        if name in during
        or isinstance(value, int)
        or str(getattr(value, "__module__", "")).startswith("cirron_otel")
    )


def _recorded(directory: Path) -> set[str]:
    files = (directory / "spool").glob("*.json")
    return {span["name"] for file in files for span in json.loads(file.read_bytes())["spans"]}


if __name__ == "__main__":
    main(sys.argv[1])
