"""Servers that the files about transformers and Accelerate share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.program_server import ProgramServer

from .workers import server_of

MODULES = (
    "torch", "torch._dynamo", "accelerate", "accelerate.accelerator", "safetensors.torch",
    "transformers", "transformers.generation.utils", "transformers.trainer",
    "transformers.pipelines", "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.t5.modeling_t5",
)  # fmt: skip


@pytest.fixture(scope="session")
def transformers() -> Iterator[ProgramServer]:
    with server_of(MODULES) as server:
        yield server


@pytest.fixture(scope="session")
def oldest_transformers() -> Iterator[ProgramServer]:
    """A server with transformers 4.48 and Accelerate 1.2, the oldest supported versions."""
    with server_of(MODULES, "transformers-oldest") as server:
        yield server
