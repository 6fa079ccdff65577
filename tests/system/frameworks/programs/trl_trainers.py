"""Programs that train with the trainers of TRL."""

from __future__ import annotations

from typing import Any

from tests.system.frameworks import program

from .transformers_parts import (
    language_model,
    options,
    results,
    tokens,
)

WORDS = ("<pad>", "<eos>", "one", "two", "three", "four", "five", "six")


def _tokenizer() -> Any:
    """Return a tokenizer of eight words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    model = Tokenizer(WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<pad>"))
    model.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


def _dataset(rows: list[dict[str, Any]]) -> Any:
    from datasets import Dataset

    return Dataset.from_list(rows)


def _arguments(**others: Any) -> dict[str, Any]:
    """Return the arguments of a training of two steps in single precision."""
    return options(max_steps=2, bf16=False, gradient_checkpointing=False, **others)


PHASES = """
      data_load
      forward
      backward
      optimizer_step"""


@program(
    f"""
cirron.session
  epoch[0]
    step[0-1]{PHASES}
    eval[0]{{function=evaluate}}
      data_load
      forward
"""
)
def fine_tunes() -> dict[str, Any]:
    """SFTTrainer with an evaluation, whose metrics are its own."""
    from trl import SFTConfig, SFTTrainer

    rows = _dataset([{"text": "one two three"}, {"text": "four five six"}] * 2)
    trainer = SFTTrainer(
        model=language_model(),
        args=SFTConfig(
            **_arguments(eval_strategy="steps", eval_steps=2, max_length=8, eos_token="<eos>")
        ),
        train_dataset=rows,
        eval_dataset=_dataset([{"text": "one two"}] * 2),
        processing_class=_tokenizer(),
    )
    trainer.train()
    return results(trainer)


@program(
    f"""
cirron.session
  prepare
  eval[0]
    data_load
    forward
  epoch[0]
    step[0-1]{PHASES}
  eval[1]
    data_load
    forward
"""
)
def fine_tunes_beside_an_accelerator() -> dict[str, Any]:
    """A script evaluates with an Accelerator of its own, before and after SFTTrainer trains.

    The Trainer owns its loop: what it prepares with its own Accelerator has no scope.
    """
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader
    from trl import SFTConfig, SFTTrainer

    accelerator = Accelerator(cpu=True)
    model, batches = accelerator.prepare(language_model(), DataLoader(tokens(2), batch_size=2))
    losses = []

    def evaluate() -> None:
        model.eval()
        with torch.no_grad():
            losses.extend(model(**batch).loss.item() for batch in batches)

    evaluate()
    trainer = SFTTrainer(
        model=model,
        args=SFTConfig(**_arguments(max_length=8, eos_token="<eos>")),
        train_dataset=_dataset([{"text": "one two three"}, {"text": "four five six"}] * 2),
        processing_class=_tokenizer(),
    )
    trainer.train()
    evaluate()
    return {**results(trainer), "losses": losses}


PAIRED = """
      data_load
      forward x2
      backward
      optimizer_step"""


@program(f"cirron.session\n  epoch[0]\n    step[0-1]{PAIRED}")
def prefers() -> dict[str, Any]:
    """DPOTrainer: a forward of the model and one of the reference in each step."""
    from trl import DPOConfig, DPOTrainer

    row = {"prompt": "one two", "chosen": " three", "rejected": " six"}
    trainer = DPOTrainer(
        model=language_model(),
        ref_model=language_model(),
        args=DPOConfig(**_arguments(max_length=8)),
        train_dataset=_dataset([row] * 4),
        processing_class=_tokenizer(),
    )
    trainer.train()
    return results(trainer)


ROLLOUT = """
        generation
          generate
            prefill
            decode
        reward"""


@program(
    f"""
cirron.session
  epoch[0]
    step[0]
      micro_step[0]
        data_load{ROLLOUT}
        forward
        backward
      micro_step[1]
        data_load
        forward
        backward
      optimizer_step
  epoch[1]
    step[0]
      micro_step[0]
        data_load{ROLLOUT}
        forward
        backward
      micro_step[1]
        data_load
        forward
        backward
      optimizer_step
"""
)
def learns_from_rewards() -> dict[str, Any]:
    """GRPOTrainer generates for the two batches of a step at once, and scores the completions."""
    from trl import GRPOConfig, GRPOTrainer

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [float(len(each)) for each in completions]

    trainer = GRPOTrainer(
        model=language_model(),
        args=GRPOConfig(
            **_arguments(
                gradient_accumulation_steps=2, num_generations=2, max_completion_length=3,
                generation_kwargs={"min_new_tokens": 3},
            )
        ),
        reward_funcs=reward,
        train_dataset=_dataset([{"prompt": "one two"}] * 2),
        processing_class=_tokenizer(),
    )  # fmt: skip
    trainer.train()
    return results(trainer)
