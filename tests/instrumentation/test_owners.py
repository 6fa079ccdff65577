"""The owner of `epoch` and `step`: transformers ahead of tensorflow ahead of torch."""

from __future__ import annotations

import itertools

import pytest

from cirron_otel.sdk.instrumentation.installing import ScopeOwners
from cirron_otel.sdk.instrumentation.training_loop import PRIORITY


def owner(owners: ScopeOwners, name: str) -> list[str]:
    return [framework for framework in PRIORITY if owners.owns(name, framework)]


@pytest.mark.parametrize("order", list(itertools.permutations(PRIORITY[:4])))
def test_in_whatever_order_they_claim_the_first_of_the_page_has_it(order: tuple[str, ...]) -> None:
    """Cirron's concepts page: transformers, tensorflow, torch."""
    owners = ScopeOwners()
    assert owner(owners, "step") == []
    for number, framework in enumerate(order, 1):
        owners.claim("step", framework)
        assert owner(owners, "step") == [min(order[:number], key=PRIORITY.index)]
    assert owner(owners, "epoch") == []
    for framework in PRIORITY:
        assert owner(owners, "step") == [framework]
        owners.release("step", framework)
    assert owner(owners, "step") == []


def test_a_claim_twice_is_one_and_a_release_of_none_is_nothing() -> None:
    owners = ScopeOwners()
    owners.release("epoch", "torch")
    owners.claim("epoch", "torch")
    owners.claim("epoch", "torch")
    owners.release("epoch", "torch")
    assert owner(owners, "epoch") == []


def test_those_that_want_to_know_are_told_of_every_change() -> None:
    owners, told = ScopeOwners(), []

    def tell() -> None:
        told.append(owner(owners, "epoch"))

    owners.on_change(tell)
    owners.claim("epoch", "torch")
    owners.claim("epoch", "transformers")
    owners.release("epoch", "transformers")
    owners.forget(tell)
    owners.forget(tell)
    owners.release("epoch", "torch")
    assert told == [["torch"], ["transformers"], ["torch"]]


def test_a_framework_that_is_not_known_cannot_claim() -> None:
    with pytest.raises(ValueError, match="'jax' claims 'epoch': expected one of transformers, ten"):
        ScopeOwners().claim("epoch", "jax")
