"""Attributes of a generation, with the names of OpenTelemetry's conventions for generative AI.

Every value is read from settings and shapes, so that no device is waited for.
"""

from __future__ import annotations

from typing import Any

OPERATION, TEXT_COMPLETION = "gen_ai.operation.name", "text_completion"
PROVIDER = "gen_ai.provider.name"
MODEL = "gen_ai.request.model"
MAX_TOKENS = "gen_ai.request.max_tokens"
CHOICES = "gen_ai.request.choice.count"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
FINISH_REASONS = "gen_ai.response.finish_reasons"
BATCH_SIZE, BEAMS = "batch_size", "num_beams"
_SAMPLING = {
    "temperature": "gen_ai.request.temperature",
    "top_k": "gen_ai.request.top_k",
    "top_p": "gen_ai.request.top_p",
}
_TOKENS = ("input_ids", "inputs_embeds")
"""The names of inputs whose second dimension counts tokens."""


def model_attributes(model: Any) -> dict[str, Any]:
    """Return the attributes that are known before a generation begins."""
    name = getattr(getattr(model, "config", None), "_name_or_path", None)
    return {
        OPERATION: TEXT_COMPLETION,
        PROVIDER: "transformers",
        MODEL: name if isinstance(name, str) and name else type(model).__name__,
    }


class TokenCounts:
    """The numbers of tokens of one generation, and the settings that limit them."""

    def __init__(self, config: Any, input_name: str, inputs: Any, prompt_length: int) -> None:
        """`config` is the complete GenerationConfig; `inputs` are the tensor of the prompts.

        `prompt_length` is the number of tokens that precede the new ones in each returned sequence.
        """
        self._config = config
        self._prompt_length = prompt_length
        self.batch_size = int(inputs.shape[0])
        self.input_tokens: int | None = None
        if input_name in _TOKENS:
            self.input_tokens = self.batch_size * int(inputs.shape[1])
        limit = config.max_length
        self._limit = None if limit is None else int(limit) - prompt_length
        self.output_tokens: int | None = None

    def attributes(self) -> dict[str, Any]:
        """Return the attributes that are known when the prompts have been prepared."""
        config = self._config
        attrs: dict[str, Any] = {BATCH_SIZE: self.batch_size}
        if self.input_tokens is not None:
            attrs[INPUT_TOKENS] = self.input_tokens
        if self._limit is not None:
            attrs[MAX_TOKENS] = self._limit
        if config.do_sample:
            values = {name: getattr(config, name, None) for name in _SAMPLING}
            attrs |= {_SAMPLING[name]: value for name, value in values.items() if value is not None}
        if (config.num_return_sequences or 1) > 1:
            attrs[CHOICES] = config.num_return_sequences
        if (config.num_beams or 1) > 1:
            attrs[BEAMS] = config.num_beams
        return attrs

    def result_attributes(self, result: Any) -> dict[str, Any]:
        """Return the attributes that the result of `generate` shows.

        The reasons are known if every sequence ended before the limit, or if none can end earlier.
        """
        shape: Any = getattr(getattr(result, "sequences", result), "shape", ())
        if len(shape) != 2:
            return {}
        rows, length = int(shape[0]), int(shape[1]) - self._prompt_length
        if length < 0:
            return {}
        self.output_tokens = rows * length
        attrs: dict[str, Any] = {OUTPUT_TOKENS: self.output_tokens}
        if self._limit is not None and length < self._limit:
            attrs[FINISH_REASONS] = ["stop"] * rows
        elif length == self._limit and self._config.eos_token_id is None:
            attrs[FINISH_REASONS] = ["length"] * rows
        return attrs
