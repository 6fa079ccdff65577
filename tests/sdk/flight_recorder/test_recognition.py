"""Errors are recognised by their type or by an allocator's own message, never by a phrase."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from cirron_otel.sdk.flight_recorder.recognition import oom_in, oom_of

from .messages import (
    MEMORY_ERRORS,
    NOT_OUT_OF_MEMORY,
    OF_TORCHS_TYPE,
    RUNTIME_ERRORS,
    Message,
    facts,
)


@pytest.mark.parametrize("message", RUNTIME_ERRORS, ids=lambda each: each.text[:60])
def test_the_messages_of_allocators(message: Message) -> None:
    found = oom_of(RuntimeError(message.text))
    assert found is not None
    assert found._asdict() == facts(message)


@pytest.mark.parametrize("message", RUNTIME_ERRORS, ids=lambda each: each.text[:60])
def test_oom_messages_in_another_exception_type_are_ignored(message: Message) -> None:
    assert oom_of(ValueError(message.text)) is None


@pytest.mark.parametrize(("kind", "text"), NOT_OUT_OF_MEMORY)
def test_texts_that_only_sound_like_it(kind: type[Exception], text: str) -> None:
    assert oom_of(kind(text)) is None


@pytest.mark.parametrize("message", OF_TORCHS_TYPE, ids=lambda each: each.text[:60])
@pytest.mark.parametrize("name", ["torch", "torch.cuda"])
def test_oom_errors_of_torch_types_are_recognised(message: Message, name: str) -> None:
    torch = pytest.importorskip("torch")
    kind = (torch if name == "torch" else torch.cuda).OutOfMemoryError
    found = oom_of(kind(message.text))
    assert found is not None
    assert found._asdict() == facts(message)


@pytest.mark.parametrize("message", MEMORY_ERRORS, ids=lambda each: each.text)
def test_memory_errors(message: Message) -> None:
    found = oom_of(MemoryError(message.text))
    assert found is not None
    assert found._asdict() == facts(message)


def _of_torch() -> None:
    torch = pytest.importorskip("torch")
    torch.empty(1 << 60, dtype=torch.float32)


def _of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    numpy.empty((1 << 44, 3), dtype="float32")


def _of_python() -> None:
    bytearray(1 << 62)


@pytest.mark.parametrize(
    ("provoke", "requested"), [(_of_torch, 1 << 62), (_of_numpy, 3 << 46), (_of_python, None)]
)
def test_real_errors_of_the_cpu(provoke: Callable[[], None], requested: int | None) -> None:
    with pytest.raises((RuntimeError, MemoryError)) as raised:
        provoke()
    found = oom_of(raised.value)
    assert found is not None
    assert (found.backend, found.requested_bytes, found.requested) == ("cpu", requested, None)


def test_the_errors_of_a_group() -> None:
    inner = MemoryError()
    group = ExceptionGroup("tasks", [ValueError("x"), ExceptionGroup("inner", [inner])])
    assert [error for error, _ in oom_in(group)] == [inner]
    assert not list(oom_in(ExceptionGroup("tasks", [ValueError("x")])))


def test_an_error_without_a_text() -> None:
    class OddError(RuntimeError):
        def __str__(self) -> str:
            raise SystemError("no text")

    assert oom_of(OddError()) is None


def test_a_huge_message_takes_no_time_to_judge() -> None:
    text = "CUDA out of memory. Tried to " * 200_000
    program = (
        f"from cirron_otel.sdk.flight_recorder.recognition import oom_of\n"
        f"assert oom_of(RuntimeError({text[:29]!r} * 200_000)) is None\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_no_framework_is_imported() -> None:
    program = (
        "import sys\n"
        "from cirron_otel.sdk.flight_recorder import recorder\n"
        "from cirron_otel.sdk.flight_recorder.recognition import oom_of\n"
        "from cirron_otel.sdk.flight_recorder import allocators, environment\n"
        "assert oom_of(MemoryError()) is not None\n"
        "assert allocators.statistics() == {}\n"
        "assert allocators.history() is None\n"
        "assert environment.environment({})['system']['torch_available'] is False\n"
        "assert not {'torch', 'numpy', 'tensorflow', 'jax'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_tensorflows_error() -> None:
    errors: Any = type(sys)("tensorflow.python.framework.errors_impl")
    kind = type("ResourceExhaustedError", (Exception,), {"__module__": errors.__name__})
    assert oom_of(kind("OOM when allocating tensor with shape[8,9] and type float")) is not None
    assert oom_of(kind("the queue is full")) is None
