"""Replaced methods of subclasses, and their restoration."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from cirron_otel.sdk.instrumentation.patches import Patches


class Base:
    def call(self) -> str:
        return "base"


def _wrapped(original: Any) -> Any:
    @functools.wraps(original)
    def call(self: Any) -> str:
        return f"hooked {original(self)}"

    return call


def _patched(base: type) -> Patches:
    patches = Patches()
    patches.wrap_in_subclasses(base, "call", _wrapped)
    return patches


def test_present_and_later_subclasses_are_replaced_and_restored() -> None:
    class Early(Base):
        def call(self) -> str:
            return "early"

    patches = _patched(Base)

    class Late(Base):
        def call(self) -> str:
            return "late"

    assert (Early().call(), Late().call()) == ("hooked early", "hooked late")
    patches.undo()
    assert (Early().call(), Late().call()) == ("early", "late")
    assert "__init_subclass__" not in vars(Base)


def test_a_method_that_is_copied_from_another_class_is_replaced_once() -> None:
    """As `dataclass(slots=True)` copies all methods of a class."""

    class Own(Base):
        def call(self) -> str:
            return "own"

    patches = _patched(Base)

    class Copied(Base):
        call = Own.call

    assert Copied().call() == "hooked own"
    patches.undo()
    assert (Own().call(), Copied().call()) == ("own", "own")


def test_a_method_that_is_replaced_twice_is_restored() -> None:
    class Own(Base):
        def call(self) -> str:
            return "own"

    original = Own.call
    patches = _patched(Base)
    patches.replace(Own, "call", _wrapped(Own.call))
    assert Own().call() == "hooked hooked own"
    patches.undo()
    assert Own.call is original


def test_a_class_that_forbids_assignments_leaves_the_others_hooked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Fixed(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            raise TypeError(name)

    class Odd(Base, metaclass=Fixed):
        def call(self) -> str:
            return "odd"

    class Own(Base):
        def call(self) -> str:
            return "own"

    patches = _patched(Base)
    assert (Odd().call(), Own().call()) == ("odd", "hooked own")
    patches.undo()
    assert Own().call() == "own"
    capsys.readouterr()
