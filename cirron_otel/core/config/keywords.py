"""The options as keyword arguments, for type checkers.

At run time every keyword is accepted, and an unknown one is reported as a configuration problem. A
type checker reports it before the program runs. `tests/core/config/test_keywords.py` compares these
classes with the table in `options.py`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, TypeAlias, TypedDict

Output: TypeAlias = Literal["spool", "log", "stdout", "none"]
Exporter: TypeAlias = Literal["auto", "none", "otlp", "cirron"]
RunDetail: TypeAlias = Literal[
    "command",
    "git",
    "versions",
    "host",
    "devices",
    "launcher",
    "hyperparameters",
    "configuration",
    "none",
]
Logger: TypeAlias = Literal["auto", "none", "tensorboard", "wandb", "mlflow"]
Snapshots: TypeAlias = Literal["stats", "sampled", "full", "none", "off"]
Size: TypeAlias = int | str
"""A number of bytes, or text such as `500MB`."""


class SharedOptions(TypedDict, total=False):
    """The options that are keywords of `profile()` and of `Cirron()`."""

    exporters: Exporter | Sequence[Exporter] | None
    run_id: str | None
    run_name: str | None
    run_details: RunDetail | Sequence[RunDetail] | None
    quiet: bool | None
    pipeline_id: str | None
    deployment_id: str | None
    model_id: str | None
    capture: Logger | Sequence[Logger] | None
    workers: bool | None
    mark_loss: bool | None
    mark_grad_norm: bool | None
    ddp_times: bool | None
    trainings: bool | None
    cuda_timing: bool | None
    cuda_memory: bool | Literal["phase"] | None
    sample_interval: float | Literal["auto"] | None
    places: bool | None
    cpu_wait: bool | None
    otlp_snapshots: Literal["summary", "full"] | None
    digest: Literal["step", "tensors", "none", "off"] | None
    digest_every: int | None
    digest_keep: str | int | tuple[int, int] | None
    metrics: bool | None
    trace_layout: Literal["segmented", "session"] | None
    segment_records: int | None
    segment_seconds: float | None
    join: Literal["parent", "link", "none"] | None
    detail_every: int | None
    detail_slow_factor: float | None
    export_budget: float | None
    overhead_marks: bool | int | None
    cpu_time: bool | None
    memory_peak: bool | None
    mark_capacity: int | None
    scope_capacity: int | None
    shutdown_timeout: float | None
    exit_timeout: float | None
    handle_signals: bool | None
    log_correlation: bool | None


class ProfileOptions(SharedOptions, total=False):
    """The additional keywords of `profile()`."""

    api_key: str | None
    api_endpoint: str | None
    workspace_id: str | None
    output_dir: str | os.PathLike[str] | None
    spool_max_bytes: Size | None
    ingest_path: str | None
    trace_buffer_max_spans: int | None


class CirronOptions(SharedOptions, total=False):
    """The additional keywords of `Cirron()`."""

    enabled: bool | None
    frameworks: str | Sequence[str] | None
