"""No argument makes anything of the public API raise, and none costs another record."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import GeneratorType
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace.status import Status

import cirron_otel as ci
from cirron_otel.core.analysis.verify import verify_spool
from cirron_otel.core.config.options import OPTIONS
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.errors import InputError
from cirron_otel.sdk.flush import json_attributes
from cirron_otel.sdk.session.api import Cirron, CirronSpanProcessor, Profiler
from cirron_otel.sdk.tracing import buffers
from cirron_otel.sdk.tracing.scope import NO_SESSION, Scope
from cirron_otel.sdk.tracing.state import state
from tests.kit.sessions.reading import recorded

from . import hostile
from .hostile import HostileError

VALUES = list(hostile.values())
ITEMS = 1000
"""The maximum number of items of an attribute in these tests; one test has the real maximum."""
REAL_ITEMS = json_attributes._MAX_ITEMS


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(json_attributes, "_MAX_ITEMS", ITEMS)
    logging.getLogger("cirron_otel").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("cirron_otel").setLevel(logging.NOTSET)
    ci.shutdown()
    state.recording = True
    buffers.reset_after_fork()
    assert state.session is NO_SESSION


def opened(tmp_path: Path, **options: Any) -> Profiler:
    options.setdefault("provider", TracerProvider(shutdown_on_exit=False))
    return ci.profile(frameworks=[], output_dir=tmp_path, flush_interval=60, **options)


def closed(tmp_path: Path, sentinels: int) -> None:
    """End the session: everything beside what was hostile is in a spool that is right."""
    json.dumps(ci.health())
    assert ci.shutdown()
    found = recorded(tmp_path)
    assert len(found.named("sentinel")) == sentinels
    assert sum(mark["name"] == "sentinel" for mark in found.marks) == sentinels
    findings = verify_spool(SpoolReader(tmp_path))
    assert [finding for finding in findings if finding.severity == "error"] == []


def sentinel() -> None:
    with ci.scope("sentinel"):
        ci.mark("sentinel", 1)


# --- every callable of the API, every argument, every value  ---


def benign(name: str, where: str) -> Any:
    """Something right for a parameter, so that the hostile one is met alone."""
    return {
        "name": "x", "value": 1, "iterable": [1], "index": 1, "fn": len, "function": len,
        "model": None, "format": "dict", "attributes": {"a": 1}, "status": Status(),
        "exception": ValueError(), "context": None, "key": "k", "span": ci.scope("s"),
    }.get(name)  # fmt: skip


def public(owner: Any) -> dict[str, Callable[..., Any]]:
    """The public methods of an object, its own dunders that people call included."""
    names = {n for n in dir(owner) if not n.startswith("_")}
    names |= {"__enter__", "__exit__", "__call__", "__repr__", "__getattr__"} & set(dir(owner))
    found = {name: inspect.getattr_static(owner, name) for name in names}
    return {n: getattr(owner, n) for n, v in found.items() if not isinstance(v, property)
            and callable(getattr(owner, n))}  # fmt: skip


CLASSES = {"Cirron", "CirronSpanProcessor", "Profiler", "Recording", "scope"}
# What ends the session has its own tests below.
ENDS = {"shutdown", "profile", "__exit__"}

# They read a recording, and training does not call them. `runs` has a test below, and `read` in
# tests/tools/frames.
READS = {"read", "runs"}

FUNCTIONS = sorted(set(ci.__all__) - CLASSES - ENDS - READS)


def calls(name: str, function: Callable[..., Any], value: Any) -> Iterator[Callable[[], Any]]:
    """Calls of `function` with `value` in each place in turn."""
    parameters = list(inspect.signature(function).parameters.values())
    for spoilt in parameters:
        args: list[Any] = []
        named: dict[str, Any] = {}
        for each in parameters:
            given = value if each is spoilt else benign(each.name, name)
            if each.kind is each.VAR_POSITIONAL:
                args += [given] if each is spoilt else []
            elif each.kind is each.VAR_KEYWORD:
                named |= {"some": given} if each is spoilt else {}
            elif each.kind is each.KEYWORD_ONLY:
                if each is spoilt or each.default is each.empty:
                    named[each.name] = given
            elif each is spoilt or each.default is each.empty:
                args.append(given)
            else:
                args.append(each.default)
        yield lambda args=args, named=named: function(*args, **named)  # type: ignore[misc]


def used(result: Any) -> None:
    """What came back is used as it is meant to be."""
    if issubclass(type(result), Scope):
        with result:
            ci.mark("inside", 1)
    elif type(result) is GeneratorType:
        result.close()


def attack(owner: Any, names: list[str], sentinels: list[int]) -> None:
    for name in names:
        for value in hostile.values().values():
            for call in calls(name, getattr(owner, name), value):
                used(call())
                sentinel()
                sentinels.append(1)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function(name: str, tmp_path: Path) -> None:
    opened(tmp_path)
    sentinels: list[int] = []
    attack(ci, [name], sentinels)
    assert sentinels or not inspect.signature(getattr(ci, name)).parameters
    closed(tmp_path, len(sentinels))


def test_every_function_without_a_session() -> None:
    attack(ci, FUNCTIONS, [])
    assert ci.flush() is False


@pytest.mark.parametrize("value", hostile.values())
def test_runs_raises_only_for_its_argument(value: str, tmp_path: Path) -> None:
    opened(tmp_path)
    with contextlib.suppress(InputError, TypeError, HostileError):
        ci.runs(hostile.values()[value])
    sentinel()
    closed(tmp_path, 1)


def test_every_method_of_a_profiler_and_of_cirron(tmp_path: Path) -> None:
    profiler = opened(tmp_path)
    sentinels: list[int] = []
    for owner in (profiler, profiler.cirron):
        names = sorted(set(public(owner)) - ENDS - {"__getattr__"})
        assert {"flush", "health", "trace"} <= set(names)
        attack(owner, names, sentinels)
        for name in dir(type(owner)):
            if isinstance(getattr(type(owner), name), property):
                getattr(owner, name)
    closed(tmp_path, len(sentinels))


@pytest.mark.parametrize("when", ["before", "inside", "after"])
def test_every_method_of_a_scope(when: str, tmp_path: Path) -> None:
    opened(tmp_path)
    sentinels: list[int] = []
    names = sorted(set(public(ci.scope("x"))) - {"__exit__", "__enter__"})
    assert {"set_attribute", "add_event", "end", "to_json", "__call__"} <= set(names)
    for name in names:
        for value in hostile.values().values():
            scope = ci.scope("x")
            for number in range(len(inspect.signature(getattr(scope, name)).parameters) or 1):
                scope = ci.scope("x")
                if when != "before":
                    scope.__enter__()
                if when == "after":
                    scope.__exit__(None, None, None)
                some = list(calls(name, getattr(scope, name), value))
                if some:
                    used(some[number]())
                read = [getattr(scope, n) for n in dir(ReadableSpan) if not n.startswith("_")]
                assert read
                scope.to_json()
                if when == "inside":
                    scope.__exit__(None, None, None)
                sentinel()
                sentinels.append(1)
    closed(tmp_path, len(sentinels))


@pytest.mark.parametrize("what", VALUES)
def test_scope_accepts_hostile_arguments(what: str, tmp_path: Path) -> None:
    value = hostile.values()[what]
    opened(tmp_path, cpu_time=True, memory_peak=True, detail_every=2, output=["spool", "log"])
    for call in calls("scope", Scope, value):
        scope = call()
        with scope:
            ci.mark("inside", 1)
            scope.__exit__(value, value, value)
        assert scope(len)([]) == 0
        for item in ci.batches([1, 2], name=value):
            assert item
            ci.mark("inside", value, some=value)
        with pytest.raises(HostileError) as caught, scope:
            raise HostileError(value)
        assert caught.value.args == (value,)
    sentinel()
    assert isinstance(ci.trace("dict"), dict)
    assert isinstance(ci.trace("json"), str)
    closed(tmp_path, 1)


def items(value: Any) -> int:
    """Count the items of a JSON value, at all depths."""
    if isinstance(value, dict):
        value = list(value.values())
    return len(value) + sum(map(items, value)) if isinstance(value, list) else 0


# Containers that are too deep use up the maximum of 100,000, but their items are not recorded.
@pytest.mark.parametrize(
    ("what", "recorded_items"), [("endless list", 10_100), ("endless dict", 50_008)]
)
def test_endless_attributes_reach_the_real_maximum(
    what: str, recorded_items: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_attributes, "_MAX_ITEMS", REAL_ITEMS)
    value = hostile.values()[what]
    opened(tmp_path)
    with ci.scope("x", a=value) as scope:
        ci.mark("inside", 1, a=value)
    assert json.loads(scope.to_json())["attributes"]["a"]
    sentinel()
    assert isinstance(ci.trace("dict"), dict)
    closed(tmp_path, 1)
    (span,) = recorded(tmp_path).named("x")
    assert items(span["attrs"]["a"]) == recorded_items


@pytest.mark.parametrize("what", VALUES)
def test_foreign_span_with_hostile_attributes_is_tolerated(what: str, tmp_path: Path) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    opened(tmp_path, provider=provider)
    value = hostile.values()[what]
    tracer = provider.get_tracer("lib")
    span = tracer.start_span("x")
    span._name = value  # as an instrumentation may, by mistake
    with trace.use_span(span), ci.scope("below"):
        pass
    span._status = value
    span.end()
    processor = ci.get_default().profile().runtime.link.processor
    processor.on_start(value, value)
    processor.on_end(value)
    sentinel()
    closed(tmp_path, 1)
    assert recorded(tmp_path).named("below")


# --- opening and ending  ---

# tests/core/config tries every value on every option; these go on to open a session.
WORST = ["everything raises", "class raises", "raising str", "raising int", "raising dict", "none",
         "nan", "huge int", "negative", "nul", "endless list", "true"]  # fmt: skip
OPENERS = [p for p in inspect.signature(Cirron.profile).parameters if p not in ("self", "options")]


@pytest.mark.parametrize("what", WORST)
def test_opening_with_one_hostile_argument(what: str, tmp_path: Path) -> None:
    value = hostile.values()[what]
    for name in [*OPENERS, *(option.name for option in OPTIONS)]:
        if name in ("api_endpoint", "output_dir"):
            continue
        options: dict[str, Any] = {"frameworks": [], "output_dir": tmp_path, name: value}
        if name != "provider":
            options["provider"] = TracerProvider(shutdown_on_exit=False)
        profiler = ci.profile(**options)
        assert isinstance(profiler, Profiler)
        assert ci.profile(**options) is profiler
        sentinel()
        assert isinstance(profiler.enabled, bool)
        assert ci.shutdown(2) in (True, False)
        json.dumps(ci.health())
        state.recording = True


@pytest.mark.parametrize("what", VALUES)
def test_opening_with_nothing_but_hostile_arguments(what: str, tmp_path: Path) -> None:
    value = hostile.values()[what]
    everything: dict[str, Any] = dict.fromkeys([*(o.name for o in OPTIONS), *OPENERS], value)
    for start in (
        lambda: ci.profile(**everything),
        lambda: Cirron(**everything).profile(),
        lambda: repr(Cirron(**everything)) + str(Cirron(**everything).config),
        lambda: CirronSpanProcessor(**everything),
    ):
        start()
        sentinel()
        ci.shutdown(2)
        state.recording = True


@pytest.mark.parametrize("what", VALUES)
def test_ending_with_a_hostile_time(what: str, tmp_path: Path) -> None:
    opened(tmp_path)
    sentinel()
    value = hostile.values()[what]
    ci.flush(value)
    profiler = ci.profile()
    profiler.__exit__(value, value, value)
    assert not profiler.enabled
    opened(tmp_path)
    ci.shutdown(value)
    assert recorded(tmp_path).named("sentinel")


@pytest.mark.parametrize("what", VALUES)
def test_a_processor_of_the_applications(what: str, tmp_path: Path) -> None:
    value = hostile.values()[what]
    processor = CirronSpanProcessor(output_dir=tmp_path, frameworks=[])
    processor.on_start(value, value)
    processor.on_end(value)
    processor.force_flush(value)
    sentinel()
    processor.shutdown()
    closed(tmp_path, 1)


# --- what is the user's own  ---


class Interrupts(hostile.Tensor):
    """A tensor during whose reading the user presses Ctrl-C."""

    def item(self) -> float:
        raise KeyboardInterrupt


def error_of(call: Callable[..., object], argument: object) -> Exception | None:
    try:
        call(argument)
    except Exception as error:
        return error
    return None


def test_user_exceptions_and_python_errors_propagate(tmp_path: Path) -> None:
    opened(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        ci.mark("loss", Interrupts())
    for leaving in (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError):
        with pytest.raises(leaving), ci.scope("x"):
            raise leaving
    for wrong in (5, None, hostile.Everything()):
        pythons = error_of(iter, wrong)
        ours = error_of(next, ci.batches(wrong))  # type: ignore[arg-type]
        assert type(ours) is type(pythons)
        assert str(ours) == str(pythons)

    def breaks() -> Iterator[int]:
        yield 1
        raise HostileError("data")

    with pytest.raises(HostileError, match="data"):
        list(ci.epochs(breaks()))
    with pytest.raises(TypeError, match="argument"):
        ci.mark("too", "many", "arguments")  # type: ignore[misc]
    with pytest.raises(AttributeError):
        _ = ci.nothing_of_that_name
    sentinel()
    closed(tmp_path, 1)


def test_a_log_handler_that_raises_is_not_ours_to_pass_on(tmp_path: Path) -> None:
    class Broken(logging.Handler):
        def handle(self, _: logging.LogRecord) -> bool:
            raise HostileError("handler")

    logger, handler = logging.getLogger("cirron_otel"), Broken()
    logger.setLevel(logging.WARNING)
    logger.addHandler(handler)
    try:
        opened(tmp_path)
        ci.mark("bad", object())
        sentinel()
    finally:
        logger.removeHandler(handler)
    assert ci.health()["swallowed_errors"] == {"mark": 1}
    closed(tmp_path, 1)
