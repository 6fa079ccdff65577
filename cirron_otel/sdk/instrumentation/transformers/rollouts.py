"""Record the phases of TRL's trainers that generate completions and score them."""

from __future__ import annotations

from typing import Any

from .loop import own_loop

GENERATION, REWARD = "generation", "reward"


def _scope(name: str, original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    loop = own_loop()
    if loop is None or loop.is_open(name):
        return original(trainer, *args, **kwargs)
    scope = loop.open_inside(name)
    try:
        result = original(trainer, *args, **kwargs)
    except BaseException as error:
        loop.close(scope, error)
        raise
    loop.close(scope)
    return result


def _generation(original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    return _scope(GENERATION, original, trainer, args, kwargs)


def _reward(original: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    return _scope(REWARD, original, trainer, args, kwargs)


ROLLOUTS = {"_generate": _generation, "_calculate_rewards": _reward}
"""The methods that are replaced in classes of TRL."""
