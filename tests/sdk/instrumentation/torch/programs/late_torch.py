"""Imports torch when the session is open already; what of ours is in torch then, and afterwards.

python -m tests.sdk.instrumentation.torch.programs.late_torch DIRECTORY

The loop calls a compiled function. `torch._dynamo` is imported later than torch.
"""

from __future__ import annotations

import json
import sys
import warnings
from types import FunctionType
from typing import Any

import cirron_otel as ci


def ours() -> list[str]:
    """Attributes of torch's modules and classes that are of our making."""
    found = set()
    for name, module in list(sys.modules.items()):
        if not f"{name}.".startswith("torch.") or module is None:
            continue
        for key, value in list(vars(module).items()):
            if _is_ours(value):
                found.add(f"{name}.{key}")
            if isinstance(value, type):
                found |= {
                    f"{name}.{key}.{inner}" for inner, each in vars(value).items() if _is_ours(each)
                }
    return sorted(found)


def _is_ours(value: Any) -> bool:
    """A function whose code is ours, whatever it says of itself (functools.wraps)."""
    if type(value) in (staticmethod, classmethod):
        value = value.__func__
    return type(value) is FunctionType and "cirron_otel" in value.__code__.co_filename


def main() -> None:
    warnings.simplefilter("ignore", FutureWarning)
    finders = list(sys.meta_path)
    ci.profile(output_dir=sys.argv[1], exporters="none", join="none")
    assert "torch" not in sys.modules
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    model = nn.Linear(1, 1)
    assert "torch._dynamo" not in sys.modules  # the optimizer imports it
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def predict(x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = model(x)
        return output

    for x in DataLoader(torch.ones(4, 1), 2):
        predict(x).sum().backward()
        optimizer.step()
    found = {"hooked": ours()}
    ci.shutdown()
    found["left"] = ours()
    added = [each for each in sys.meta_path if each not in finders]
    found["finders left"] = [str(each) for each in added if "cirron" in type(each).__module__]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
