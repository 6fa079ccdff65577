"""Record `generate` as a request with its prefill and its decoding.

docs/generation.md defines the rules.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ...session.errors import record_error
from ...tracing.clock import now
from ...tracing.inference import REQUEST, Request
from ...tracing.scope import Scope
from ...tracing.state import CONTEXT, SCOPE_KEY, state
from ..base import Part
from ..patches import Patches
from ..recording import is_recording
from ..step_engine import current_engine
from ..training_loop import current_loop
from .gen_ai import TokenCounts, model_attributes
from .loop import NAME

GENERATE, PREFILL, DECODE = "generate", "prefill", "decode"
_NO_REQUEST = frozenset({REQUEST, GENERATE, "epoch", "step", "batch", "eval"})
"""Inside a scope with one of these names, a generation is not a request of its own."""
_ENCODERS = (
    "_prepare_encoder_decoder_kwargs_for_generation",
    "_prepare_text_encoder_decoder_kwargs_for_generation",
    "_prepare_multimodal_encoder_kwargs_for_generation",
)
"""The methods that run an encoder, in different versions."""


class _Open(threading.local):
    """The open generations of a thread, the outermost first; None for a nested one."""

    def __init__(self) -> None:
        self.calls: list[Generation | None] = []


_open = _Open()


class GenerationHooks:
    """Replaces `GenerationMixin.generate` and the methods that show where its parts end."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches

    def parts(self, module: Any) -> list[Part]:
        """Return the parts of the hooks into `module`, which is `transformers.generation.utils`."""
        mixin = module.GenerationMixin
        return [
            ("generate", lambda: self._wrap_generate(mixin)),
            ("tokens of generate", self._part(mixin, "_prepare_generated_length", _prepared)),
            ("prefill", self._part(mixin, "_update_model_kwargs_for_generation", _forwarded)),
            ("time to first token", self._part(mixin, "_has_unfinished_sequences", _checked)),
            ("encoders of generate", lambda: self._wrap_encoders(mixin)),
        ]

    def _wrap_generate(self, mixin: Any) -> None:
        from torch.compiler import is_dynamo_compiling  # noqa: PLC0415

        def around(original: Any, model: Any, args: Any, kwargs: Any) -> Any:
            if is_dynamo_compiling():
                return original(model, *args, **kwargs)
            return _generate(original, model, args, kwargs)

        self._patches.wrap(mixin, "generate", around)

    def _part(self, mixin: Any, name: str, around: Callable[..., Any]) -> Callable[[], None]:
        return lambda: self._patches.wrap(mixin, name, around)

    def _wrap_encoders(self, mixin: Any) -> None:
        names = [name for name in _ENCODERS if hasattr(mixin, name)]
        for name in names or _ENCODERS[:1]:
            self._patches.wrap(mixin, name, _encoding)
        if hasattr(mixin, "_prefill"):
            self._patches.wrap(mixin, "_prefill", _prefilling)


class _GenerationScope(Request):
    """The scope of one call of `generate`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        if name != REQUEST:
            self.attrs.pop("request_id", None)


class Generation:
    """One call of `generate`, with its open part."""

    def __init__(self, model: Any, arguments: Any) -> None:
        """Open the scope. `arguments` are the call's positional and keyword arguments."""
        self.model = model
        self.lengths: TokenCounts | None = None
        self._part: Scope | None = None
        self._is_prefilled = False
        self._checks = 0
        self._first = 0
        """The time at which the first token of every sequence was chosen, monotonic ns."""
        self._engine = current_engine()
        self._before = 0 if self._engine is None else self._engine.begin_inference(arguments)
        try:
            self.scope = _GenerationScope(_name_here())
            self.scope.__enter__()
        except BaseException:
            self._leave()
            raise

    def describe(self, attrs: dict[str, Any]) -> None:
        """Add attributes of the scope. The dict is replaced, because another thread may read it."""
        self.scope._attrs = {**self.scope.attrs, **attrs}

    def begin_prefill(self) -> None:
        """Begin the prefill, at the first forward of the model or of its encoder."""
        if self._part is None:
            self._part = Scope(PREFILL).__enter__()

    def end_prefill(self) -> None:
        """End the prefill, after which tokens are chosen."""
        if self._part is not None and not self._is_prefilled:
            self._is_prefilled = True
            self._part.__exit__(None, None, None)
            self._part = Scope(DECODE).__enter__()

    def check(self) -> None:
        """Handle the check whether sequences are unfinished: the first follows no token."""
        self._checks += 1
        if self._checks == 1:
            self.begin_prefill()
        elif not self._first:
            self.end_prefill()
            self._first = now()

    def end(self, error: BaseException | None, result: Any = None) -> None:
        """Close the scope with its totals; `error` is the exception that leaves the call."""
        try:
            at = now()
            failure = (None if error is None else type(error), error, None)
            if self._part is not None:
                self._part.__exit__(*failure)
            if error is None:
                self._finish(result, at)
            self.scope.__exit__(*failure)
        except Exception as problem:
            record_error(NAME, problem)
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._engine is not None:
            self._engine.end_inference(self._before)

    def _finish(self, result: Any, at: int) -> None:
        """Add the marks that `inference` adds, and the attributes of the result."""
        scope, lengths = self.scope, self.lengths
        first = (self._first or at) if self._is_prefilled else 0
        if first:
            scope.note("time_to_first_token_ms", (first - scope._start) / 1e6)
        scope.note("request_duration_ms", (at - scope._start) / 1e6)
        if lengths is None:
            return
        self.describe(lengths.result_attributes(result))
        if lengths.input_tokens is not None:
            scope.note("input_tokens", lengths.input_tokens, normalized=True)
        tokens = lengths.output_tokens
        if tokens is None:
            return
        scope.note("output_tokens", tokens, normalized=True)
        if lengths.input_tokens is not None:
            scope.note("total_tokens", lengths.input_tokens + tokens, normalized=True)
        if self._checks > 2 and first < at:  # more than one token was chosen
            scope.note("tokens_per_second", tokens * 1e9 / (at - first))


def _name_here() -> str:
    """Return the name of a generation's scope: `request`, or `generate` inside other work."""
    if current_loop() is not None:
        return GENERATE
    scope: Any = CONTEXT.get().get(SCOPE_KEY) or state.session
    while scope._depth:
        if scope._name in _NO_REQUEST:
            return GENERATE
        scope = scope._above
    return REQUEST


def _generate(original: Any, model: Any, args: Any, kwargs: Any) -> Any:
    calls = _open.calls
    if calls and calls[-1] is not None and calls[-1].model is model and not calls[-1].lengths:
        return original(model, *args, **kwargs)  # `generate` has called itself
    call = None if calls else _begin(model, (args, kwargs))
    if call is None and not calls:
        return original(model, *args, **kwargs)
    calls.append(call)
    try:
        result = original(model, *args, **kwargs)
    except BaseException as error:
        calls.pop()
        if call is not None:
            call.end(error)
        raise
    calls.pop()
    if call is not None:
        call.end(None, result)
    return result


def _begin(model: Any, arguments: Any) -> Generation | None:
    """Return a new generation; None if nothing is recorded."""
    try:
        if not is_recording():
            return None
        call = Generation(model, arguments)
    except Exception as error:
        record_error(NAME, error)
        return None
    try:
        call.describe(model_attributes(model))
    except Exception as error:
        record_error(NAME, error)
    return call


def _call_of(model: Any) -> Generation | None:
    """Return the open generation of a model; None inside a generation of another model."""
    calls = _open.calls
    call = calls[-1] if calls else None
    return call if call is not None and call.model is model else None


def _prepared(original: Any, model: Any, args: Any, kwargs: Any) -> Any:
    config = original(model, *args, **kwargs)
    call = _call_of(model)
    if call is not None:
        try:
            given = {**dict(zip(_PREPARED, args, strict=False)), **kwargs}
            lengths = TokenCounts(
                config, given["model_input_name"], given["inputs_tensor"], given["input_ids_length"]
            )
            call.describe(lengths.attributes())
            call.lengths = lengths
        except Exception as error:
            record_error(NAME, error)
    return config


_PREPARED = (
    "generation_config", "has_default_max_length", "has_default_min_length", "model_input_name",
    "input_ids_length", "inputs_tensor",
)  # fmt: skip
"""The parameters of `_prepare_generated_length`."""


def _encoding(original: Any, model: Any, args: Any, kwargs: Any) -> Any:
    _notify(model, Generation.begin_prefill)
    return original(model, *args, **kwargs)


def _prefilling(original: Any, model: Any, args: Any, kwargs: Any) -> Any:
    _notify(model, Generation.begin_prefill)
    result = original(model, *args, **kwargs)
    _notify(model, Generation.end_prefill)
    return result


def _forwarded(original: Any, model: Any, args: Any, kwargs: Any) -> Any:
    _notify(model, Generation.end_prefill)
    return original(model, *args, **kwargs)


def _checked(original: Any, model: Any, args: Any, kwargs: Any) -> Any:
    _notify(model, Generation.check)
    return original(model, *args, **kwargs)


def _notify(model: Any, event: Callable[[Generation], None]) -> None:
    """Pass an event to the open generation of a model. Raises nothing."""
    call = _call_of(model)
    if call is not None:
        try:
            event(call)
        except Exception as error:
            record_error(NAME, error)
