"""Programs that generate text with models of transformers: served, evaluated, and in training."""

from __future__ import annotations

import threading
from typing import Any

from tests.system.frameworks import program

PARTS = """
    prefill
    decode"""
REQUEST = f"cirron.session\n  request{PARTS}"
NESTED = """
      generate
        prefill
        decode"""


def _gpt2(seed: int = 1, **options: Any) -> Any:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    sizes = {"vocab_size": 32, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
    tokens = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**{**sizes, **tokens, **options})).eval()


def _t5() -> Any:
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(1)
    config = T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    return T5ForConditionalGeneration(config).eval()


def _prompts(rows: int = 2, length: int = 4) -> Any:
    import torch

    return torch.randint(3, 32, (rows, length), generator=torch.Generator().manual_seed(5))


@program(
    "cirron.session\n  request{request_id,gen_ai.operation.name=text_completion,batch_size=2,"
    "gen_ai.request.model=GPT2LMHeadModel,gen_ai.request.max_tokens=5,"
    "gen_ai.usage.input_tokens=8,gen_ai.usage.output_tokens=10,"
    f"gen_ai.response.finish_reasons}}{PARTS}"
)
def greedy() -> dict[str, Any]:
    """Two prompts of four tokens, five new tokens each."""
    result = _gpt2().generate(_prompts(), max_new_tokens=5, do_sample=False)
    return {"tokens": result.tolist(), "logs": [["input_tokens", 8], ["output_tokens", 10]]}


@program(
    "cirron.session\n  request{gen_ai.request.temperature=0.7,gen_ai.request.top_p=0.9,"
    "gen_ai.request.top_k=8,gen_ai.request.choice.count=3,gen_ai.usage.input_tokens=4,"
    f"gen_ai.usage.output_tokens=15}}{PARTS}"
)
def samples_three_sequences() -> dict[str, Any]:
    """Sampling with a temperature, and three sequences of one prompt."""
    result = _gpt2().generate(
        _prompts(1), max_new_tokens=5, do_sample=True, temperature=0.7, top_k=8, top_p=0.9,
        num_return_sequences=3,
    )  # fmt: skip
    return {"tokens": result.tolist()}


@program(f"cirron.session\n  request{{num_beams=3,gen_ai.usage.output_tokens=10}}{PARTS}")
def beam_search() -> dict[str, Any]:
    """Three beams; only the best ones count."""
    return {"tokens": _gpt2().generate(_prompts(), max_new_tokens=5, num_beams=3).tolist()}


@program(
    "cirron.session\n  request{gen_ai.usage.input_tokens=8,gen_ai.usage.output_tokens=6}" + PARTS
)
def a_padded_batch() -> dict[str, Any]:
    """The padding of a shorter prompt counts as tokens."""
    import torch

    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    result = _gpt2().generate(_prompts(), attention_mask=mask, max_new_tokens=3)
    return {"tokens": result.tolist()}


@program(f"{REQUEST}\n  request{PARTS}")
def streams_tokens() -> dict[str, Any]:
    """A streamer in the same thread, and one that another thread reads."""
    from transformers.generation.streamers import BaseStreamer

    class Collect(BaseStreamer):  # type: ignore[misc]
        def __init__(self) -> None:
            self.values: list[int] = []
            self.is_over = threading.Event()

        def put(self, value: Any) -> None:
            self.values += value.flatten().tolist()

        def end(self) -> None:
            self.is_over.set()

    model, first, second = _gpt2(), Collect(), Collect()
    model.generate(_prompts(1), max_new_tokens=4, streamer=first)
    options = {"max_new_tokens": 4, "streamer": second}
    thread = threading.Thread(target=model.generate, args=(_prompts(1),), kwargs=options)
    thread.start()
    second.is_over.wait(60)
    thread.join()
    return {"first": first.values, "second": second.values}


@program(f"cirron.session\n  request{{gen_ai.usage.output_tokens=6}}{PARTS}")
def assisted_generation() -> dict[str, Any]:
    """A smaller model drafts tokens: its own calls of `generate` are part of the request."""
    model, assistant = _gpt2(), _gpt2(2)
    result = model.generate(
        _prompts(1), max_new_tokens=6, assistant_model=assistant, do_sample=False
    )
    return {"tokens": result.tolist()}


@program(
    "cirron.session\n  request{gen_ai.request.model=T5ForConditionalGeneration,"
    f"gen_ai.usage.input_tokens=8,gen_ai.request.max_tokens=4}}{PARTS}"
)
def encoder_and_decoder() -> dict[str, Any]:
    """T5: the encoder is part of the prefill, and the start token is no output."""
    return {"tokens": _t5().generate(_prompts(), max_new_tokens=4).tolist()}


@program(
    "cirron.session\n  forward\n  request{gen_ai.usage.input_tokens=8,"
    f"gen_ai.usage.output_tokens=6}}{PARTS}"
)
def embedded_prompts_and_scores() -> dict[str, Any]:
    """Prompts as embeddings; the result is an object with scores."""
    model = _gpt2()
    result = model.generate(
        inputs_embeds=model.get_input_embeddings()(_prompts()),
        max_new_tokens=3, return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    return {"tokens": result.sequences.tolist(), "scores": len(result.scores)}


@program(
    "cirron.session\n  request{gen_ai.request.max_tokens=9,gen_ai.usage.output_tokens=2,"
    f"gen_ai.response.finish_reasons}}{PARTS}"
)
def a_criterion_of_the_program() -> dict[str, Any]:
    """A stopping criterion ends the sequence before its limit."""
    import torch
    from transformers import StoppingCriteria, StoppingCriteriaList

    class AfterTwo(StoppingCriteria):  # type: ignore[misc]
        def __call__(self, input_ids: Any, *_: Any, **__: Any) -> Any:
            return torch.full((len(input_ids),), input_ids.shape[1] >= 6)

    result = _gpt2().generate(
        _prompts(1), max_new_tokens=9, stopping_criteria=StoppingCriteriaList([AfterTwo()])
    )
    return {"tokens": result.tolist()}


@program(
    "cirron.session\n  request!\n    prefill\n    decode!",
    error="RuntimeError: no third token",
)
def fails_in_the_middle() -> dict[str, Any]:
    """A logits processor, which uses another model, raises at the third token."""
    from transformers import LogitsProcessor, LogitsProcessorList

    other = _gpt2(3)

    class Fail(LogitsProcessor):  # type: ignore[misc]
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            if input_ids.shape[1] == 6:
                raise RuntimeError("no third token")
            return scores + other(input_ids).logits[:, -1]

    _gpt2().generate(_prompts(), max_new_tokens=5, logits_processor=LogitsProcessorList([Fail()]))
    return {}


@program(
    "cirron.session\n  request{request_id}\n    generate\n      prefill\n      decode\n"
    "  request\n    generate\n      prefill\n      decode"
)
def in_a_request_of_the_program() -> dict[str, Any]:
    """A function with `ci.inference`, and its context manager: no second request."""
    import cirron_otel as ci

    model = _gpt2()

    @ci.inference
    def serve(prompts: Any) -> Any:
        return model.generate(prompts, max_new_tokens=3)

    tokens = serve(_prompts()).tolist()
    with ci.inference():
        model.generate(_prompts(), max_new_tokens=3)
    return {"tokens": tokens}


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {f"w{index}": index for index in range(32)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0", unk_token="w0")


@program(f"{REQUEST}\n  eval[0]" + "\n    data_load\n    generate\n      prefill\n      decode" * 3)
def a_pipeline() -> dict[str, Any]:
    """A text-generation pipeline: one prompt is a request, a list is a pass over a loader."""
    from transformers import pipeline

    generate = pipeline("text-generation", model=_gpt2(), tokenizer=_tokenizer(), device="cpu")
    options = {"max_new_tokens": 3, "do_sample": False}
    texts = [generate("w3 w4 w5", **options)]
    texts += generate(["w6 w7", "w8 w9", "w10 w11"], **options)
    return {"texts": str(texts)}


def _sequences(rows: int) -> Any:
    """Return a dataset of prompts with labels."""
    from torch.utils.data import Dataset

    prompts = _prompts(rows)

    class Sequences(Dataset[Any]):
        def __len__(self) -> int:
            return rows

        def __getitem__(self, index: int) -> Any:
            return {"input_ids": prompts[index], "labels": prompts[index]}

    return Sequences()


def _arguments(kind: Any, **options: Any) -> Any:
    return kind(
        output_dir="out", per_device_train_batch_size=2, per_device_eval_batch_size=2,
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=1, **options,
    )  # fmt: skip


@program(
    "cirron.session\n  eval[0]"
    + "\n    data_load\n    generate\n      prefill\n      decode\n    forward" * 2
)
def evaluation_of_a_trainer() -> dict[str, Any]:
    """Seq2SeqTrainer with `predict_with_generate`: the generations are part of the evaluation."""
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

    trainer = Seq2SeqTrainer(
        model=_t5(),
        args=_arguments(
            Seq2SeqTrainingArguments, predict_with_generate=True, generation_max_length=4
        ),
        eval_dataset=_sequences(4),
        compute_metrics=lambda given: {"tokens": int(given.predictions.size)},
    )
    metrics = trainer.evaluate()
    return {"loss": metrics["eval_loss"], "tokens": metrics["eval_tokens"]}


@program(
    f"cirron.session\n  epoch[0]\n    step[0-1]\n      data_load{NESTED}"
    "\n      forward\n      backward\n      optimizer_step"
)
def generates_in_the_steps_of_a_trainer() -> dict[str, Any]:
    """A Trainer that generates the answers on which it trains, as GRPO does."""
    from transformers import Trainer, TrainingArguments

    class Online(Trainer):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            tokens = model.generate(inputs["input_ids"], max_new_tokens=3, do_sample=True)
            inputs = {"input_ids": tokens, "labels": tokens}
            return super().training_step(model, inputs, *args, **kwargs)

    trainer = Online(
        model=_gpt2(),
        args=_arguments(TrainingArguments, num_train_epochs=1, logging_strategy="no"),
        train_dataset=_sequences(4),
    )
    return {"loss": trainer.train().training_loss}


STEP = """
      data_load
      forward
      backward
      optimizer_step"""


def _train(model: Any, optimizer: Any, batch: Any) -> float:
    loss = model(input_ids=batch["input_ids"], labels=batch["labels"]).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.item())


@program(
    f"cirron.session\n  epoch[0]\n    step[0-1]{STEP}\n  eval[0]"
    + "\n    data_load\n    generate\n      prefill\n      decode" * 2
    + f"\n  request{PARTS}"
)
def evaluation_of_a_written_out_loop() -> dict[str, Any]:
    """The example of a summarization without a Trainer; then the trained model serves a request."""
    import torch
    from torch.utils.data import DataLoader

    model = _gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    losses = [_train(model, optimizer, batch) for batch in DataLoader(_sequences(4), 2)]
    model.eval()
    tokens = []
    for batch in DataLoader(_sequences(4), 2):
        tokens += model.generate(batch["input_ids"], max_new_tokens=3).tolist()
    tokens += model.generate(_prompts(1), max_new_tokens=3).tolist()
    return {"losses": losses, "tokens": tokens}


@program(
    f"cirron.session\n  epoch[0-1]\n    step[0-1]\n      data_load{NESTED}"
    "\n      forward\n      backward\n      optimizer_step"
)
def trains_on_its_own_answers() -> dict[str, Any]:
    """A loop that generates in training mode, and trains on the result."""
    import torch
    from torch.utils.data import DataLoader

    model = _gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    losses = []
    for _ in range(2):
        for batch in DataLoader(_sequences(4), 2):
            tokens = model.generate(batch["input_ids"], max_new_tokens=3, do_sample=True)
            losses.append(_train(model, optimizer, {"input_ids": tokens, "labels": tokens}))
    return {"losses": losses}


@program(
    f"cirron.session\n  request{PARTS}\n  step[0]\n    forward\n    backward\n    optimizer_step"
)
def without_a_loader() -> dict[str, Any]:
    """Nothing is open in a loop without a loader, so the generation is a request."""
    import torch

    model = _gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = model.generate(_prompts(), max_new_tokens=3)
    return {"loss": _train(model, optimizer, {"input_ids": tokens, "labels": tokens})}
