"""No secret of a command line comes into a span."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cirron_otel.sdk.session.redaction import redacted

from .running import job_of, run, spool_of

SECRET = "s3cr3t-value"


@pytest.mark.parametrize(
    "words",
    [
        ["--hf-token", SECRET],
        [f"--hf_token={SECRET}"],
        ["--apiKey", SECRET],
        ["-key", SECRET],
        [f"model.wandb_api_key={SECRET}"],
        [f"DB_PASSWORD={SECRET}"],
        ["--db-passwd", SECRET],
        ["--client-secret", SECRET],
        ["--aws-credentials", f"-{SECRET}"],
        ["-H", f"Authorization: Bearer {SECRET}"],
        [f"postgresql://user:{SECRET}@host/db"],
        [f"--store=https://user:{SECRET}@host/"],
        [f"hf_{SECRET}0123"],
        [f"--note=sk-{SECRET}"],
        [f"postgresql://user:a@{SECRET}@host/db"],
        ["sh", "-c", f"cd x && HF_TOKEN={SECRET} python train.py"],
        ["bash", "-lc", f"python train.py --hf-token  {SECRET} --lr 1"],
        ["-c", f"curl -H 'Authorization: Bearer {SECRET}' http://host/"],
        ["-c", f"curl -H Authorization:Bearer\\ {SECRET} https://u:{SECRET}@host/"],
        ["--config", f'{{"api_key": "{SECRET} {SECRET}", "lr": 1}}'],
        [f"--data=https://host/?token={SECRET}&x=1"],
    ],
)
def test_secrets_are_left_out(words: list[str]) -> None:
    shown = redacted(["python", "train.py", *words, "--lr", "1"])
    assert SECRET not in " ".join(shown)
    assert len(shown) == len(words) + 4
    assert (shown[:2], shown[-2:]) == (["python", "train.py"], ["--lr", "1"])


@pytest.mark.parametrize(
    "words",
    [
        ["--max-tokens", "512"],
        ["--tokenizer", "gpt2"],
        ["--keyframes=3"],
        ["--author", "Ada"],
        ["https://host/path?x=1"],
        ["--lr=0.1", "-x", "y"],
        ["sh", "-c", "python train.py --max-tokens 5 --lr=1 && echo 'a: b' x=y"],
        ['{"lr": 0.1, "layers": [1, 2]}', "http://host:80/a:b"],
    ],
)
def test_arguments_without_secrets_are_unchanged(words: list[str]) -> None:
    assert redacted(words) == words


def test_option_after_a_secret_flag_is_not_its_value() -> None:
    assert redacted(["--use-auth", "--epochs", "3"]) == ["--use-auth", "--epochs", "3"]


@pytest.mark.parametrize("text", [":", "://a:", "key=", "--a ", "\"k'=", " "])
def test_a_text_of_any_length_is_read_once(text: str) -> None:
    """Looked at from each place to the end, these would take longer than a test may."""
    assert redacted(["://" + text * 300_000, "--token" + text * 300_000])


def test_nothing_of_it_is_in_the_spool(tmp_path: Path) -> None:
    run(tmp_path, "-q", "--command-args", "--", "echo", "--token", SECRET, "a b")
    attrs = job_of(spool_of(tmp_path)).record["attrs"]
    assert attrs["process.command_line"] == "echo --token '***' 'a b'"
    assert attrs["process.command_args"] == ["echo", "--token", "***", "a b"]
    for file in (tmp_path / ".cirron").rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()
    run(tmp_path / ".cirron", "-q", "true")
    without = job_of(spool_of(tmp_path / ".cirron")).record["attrs"]
    assert "process.command_args" not in json.dumps(without)
