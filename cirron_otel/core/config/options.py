"""The table of options. docs/configuration.md shows it; a test compares the two."""

# ruff: noqa: RUF009 (the calls of `_option` create dataclass fields)

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from .engine import Key
from .parsing import (
    BOOLEAN,
    DETAIL,
    DIRECTORY,
    ENDPOINT,
    EVERY,
    SECRET,
    SIZE,
    STEP_RANGE,
    TEXT,
    URL_PATH,
    Parser,
    integer,
    names,
    number,
    number_above,
    one_of,
    optional,
    some_of,
    word_or,
)

RUN_DETAILS: Final = (
    "command", "git", "versions", "host", "devices", "launcher", "hyperparameters",
    "configuration",
)  # fmt: skip
LOGGERS: Final = ("tensorboard", "wandb", "mlflow")
API_ENDPOINT: Final = "https://api.cirron.com"
INGEST_PATH: Final = "/v1/traces"
# Longer timeouts exceed the maximum timeout of a thread on some platforms, and have no use.
_DAY = 86_400


class NotGiven(Enum):
    """The type of NOT_GIVEN."""

    NOT_GIVEN = "not given"

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN: Final = NotGiven.NOT_GIVEN
"""The default of keyword arguments. It differs from None, because `snapshots=None` means off."""


def _option(
    default: Any,
    parser: Parser,
    meaning: str,
    *,
    unit: str = "",
    takes_none: bool = False,
    is_secret: bool = False,
    in_project: bool = True,
    in_user_file: bool = True,
) -> Any:
    key = Key(
        parser,
        meaning,
        unit,
        is_secret=is_secret,
        takes_none=takes_none,
        in_project=in_project,
        in_user_file=in_user_file,
    )
    return field(default=default, metadata={"key": key}, repr=not is_secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The options of one process, each with a valid value."""

    enabled: bool = _option(True, BOOLEAN, "false: nothing is traced, spooled or sent")
    output_dir: Path = _option(
        Path(".cirron"),
        DIRECTORY,
        "the directory of the spool and the snapshots, relative to the working directory; `~/` is"
        " the home directory",
    )
    output: tuple[str, ...] = _option(
        ("spool",),
        some_of("spool", "log", "stdout"),
        "where this process writes batches: `spool`, `log`, `stdout`, `none`, or a list; exported"
        " batches are always spooled",
    )
    exporters: tuple[str, ...] = _option(
        ("auto",),
        some_of("otlp", "cirron", auto=True),
        "where the spool is sent: `auto`, `none`, or some of `otlp` and `cirron`",
    )
    flush_interval: float = _option(
        1.0,
        number_above(0, _DAY, "seconds"),
        "the time between flushes; a killed process loses at most the records of this time",
        unit="s",
    )
    spool_max_bytes: int = _option(
        1_000_000_000,
        SIZE,
        "the cap of the spool, above which its oldest batches are evicted",
        unit="bytes",
    )
    api_key: str | None = _option(
        None,
        SECRET,
        "the API key of a Cirron workspace; never shown",
        is_secret=True,
        in_project=False,
    )
    api_endpoint: str = _option(
        API_ENDPOINT, ENDPOINT, "the URL of the Cirron platform", in_project=False
    )
    ingest_path: str = _option(
        INGEST_PATH,
        URL_PATH,
        "the path below `api_endpoint` that receives batches",
        in_project=False,
    )
    workspace_id: str | None = _option(None, TEXT, "`cirron.workspace.id` of the resource")
    run_id: str | None = _option(
        None,
        TEXT,
        "`cirron.run.id` of the resource; the platform sets it, and it selects the event stream",
        in_project=False,
        in_user_file=False,
    )
    run_name: str | None = _option(
        None,
        TEXT,
        "`cirron.run.name` of the resource; the default is the script's name and the beginning of"
        " the run's id. `name=` of `profile()` sets it, too",
        in_project=False,
        in_user_file=False,
    )
    run_details: tuple[str, ...] = _option(
        RUN_DETAILS,
        some_of(*RUN_DETAILS),
        "the details of a run that its resource records, or `none`",
    )
    quiet: bool | None = _option(
        None,
        optional(BOOLEAN),
        "omit the line on stderr at the end of a run; None: in pytest and under `cirron-otel run`",
    )
    pipeline_id: str | None = _option(None, TEXT, "`cirron.pipeline.id` of the resource")
    deployment_id: str | None = _option(None, TEXT, "`cirron.deployment.id` of the resource")
    model_id: str | None = _option(None, TEXT, "`cirron.model.id` of the resource")
    frameworks: tuple[str, ...] | None = _option(
        None,
        names(),
        "the frameworks to instrument; `auto`: all that are installed; `none`: none",
    )
    capture: tuple[str, ...] = _option(
        ("auto",),
        some_of(*LOGGERS, auto=True),
        "the loggers whose scalars become marks: `auto` (all that the program imports), `none`, or"
        " some of `tensorboard`, `wandb` and `mlflow`",
    )
    workers: bool = _option(
        False,
        BOOLEAN,
        "also trace the workers of a DataLoader (fetch and collate), each in its own session",
    )
    mark_loss: bool = _option(
        True, BOOLEAN, "mark the value that `backward` is called on as `loss`"
    )
    mark_grad_norm: bool = _option(
        True, BOOLEAN, "mark the norm that `torch.nn.utils.clip_grad_norm_` returns as `grad_norm`"
    )
    ddp_times: bool = _option(
        True,
        BOOLEAN,
        "mark the times of backward passes that DistributedDataParallel measures itself",
    )
    trainings: bool = _option(
        True,
        BOOLEAN,
        "detect the trainings of a process by their optimizers; `ci.training` works without it",
    )
    cuda_timing: bool = _option(
        True, BOOLEAN, "measure `gpu_ns` of the phases of a step with events on the device's stream"
    )
    cuda_memory: bool | Literal["phase"] = _option(
        False,
        word_or("phase", BOOLEAN),
        "measure the allocator's peaks per step; `phase`: also per phase of a step; it resets"
        " torch's own peak statistics",
    )
    sample_interval: float | Literal["auto"] | None = _option(
        "auto",
        optional(word_or("auto", number(0.01, _DAY, "seconds"))),
        "the time between samples of memory, CPU and GPU ([memory.md](memory.md)); `auto`: up to"
        " 1 if torch is hooked or under `cirron-otel run`, else None; None: no samples",
        unit="s",
        takes_none=True,
    )
    places: bool = _option(
        True,
        BOOLEAN,
        "with samples, also mark the line of the program at which the thread that trains is",
    )
    cpu_wait: bool = _option(
        True, BOOLEAN, "with samples, also mark how long the training waited for a CPU"
    )
    snapshots: str | None = _option(
        "stats",
        optional(one_of("stats", "sampled", "full")),
        "what to record of weights and gradients; None, `none` or `off`: nothing",
        takes_none=True,
    )
    sample_rate: float = _option(
        0.01, number(0, 1), "the share of epochs whose tensors `sampled` stores"
    )
    otlp_snapshots: str = _option(
        "summary",
        one_of("summary", "full"),
        "the snapshots that this process sends over OTLP; `summary`: one for all weights of an"
        " epoch and one for all gradients; `full`: all snapshots, and the digests of single"
        " tensors",
    )
    digest: str | None = _option(
        None,
        optional(one_of("step", "tensors")),
        "digest the tensors of steps ([digests.md](digests.md)); `step`: one digest for each"
        " quantity; `tensors`: also one for each tensor; None: no digests",
        takes_none=True,
    )
    digest_every: int = _option(
        1, integer(1), "digest only the steps with a number that N divides", unit="steps"
    )
    digest_keep: tuple[int, int] | None = _option(
        None,
        optional(STEP_RANGE),
        "store the tensors of the steps A to B, written `A..B`; None: of no step",
        takes_none=True,
    )
    metrics: bool = _option(
        True,
        BOOLEAN,
        "send OTLP metrics along with the spans, if OTLP is sent; false: no metrics are measured",
    )
    trace_layout: str = _option(
        "segmented",
        one_of("segmented", "session"),
        "one OTLP trace per segment of the session, or one per session",
    )
    segment_records: int = _option(
        4000, integer(1), "the number of records after which a segment is full", unit="records"
    )
    segment_seconds: float = _option(
        600.0, number_above(0, 1e9, "seconds"), "the age at which a segment is full", unit="s"
    )
    join: str = _option(
        "parent",
        one_of("parent", "link", "none"),
        "how the session joins the current span, or the span that the environment names: as its"
        " child, by a link, or not",
    )
    detail_every: int | None = _option(
        None,
        DETAIL,
        "keep the scopes inside every Nth step, and inside slow and failed steps; None or 0: inside"
        " all steps",
        unit="steps",
        takes_none=True,
    )
    detail_slow_factor: float = _option(
        2.0,
        number(1),
        "a step is slow, and keeps its scopes, if it takes more than this factor times the median"
        " of recent steps",
    )
    export_budget: float | None = _option(
        None,
        optional(number_above(0, 1e9, "spans per second")),
        "the spans per second that this process exports ([scaling.md](scaling.md)); beyond it,"
        " steps are sent as summaries; None: all spans",
        unit="spans/s",
        takes_none=True,
    )
    overhead_marks: int = _option(
        1,
        EVERY,
        "record the SDK's own time as a mark; true: in every scope; N: in every Nth; false: never",
    )
    cpu_time: bool = _option(False, BOOLEAN, "measure `cpu_ns`, the thread's CPU time, per scope")
    memory_peak: bool = _option(
        False, BOOLEAN, "measure `memory_peak_bytes`, the resident set, per scope"
    )
    mark_capacity: int = _option(
        65_536,
        integer(1),
        "marks that may wait for the flush; beyond this number, the oldest are dropped",
        unit="marks per thread",
    )
    scope_capacity: int = _option(
        262_144,
        integer(1),
        "scopes that may wait for the flush; beyond this number, the oldest are dropped, and"
        " counted",
        unit="scopes per process",
    )
    trace_buffer_max_spans: int = _option(
        10_000, integer(0), "the number of scopes that `trace()` can show", unit="scopes"
    )
    shutdown_timeout: float = _option(
        30.0,
        number(0, _DAY, "seconds"),
        "the longest time that `shutdown()` waits for exporters",
        unit="s",
    )
    exit_timeout: float | None = _option(
        None,
        optional(number(0, _DAY, "seconds")),
        "the longest time that a signal or the interpreter's exit waits for the last flush and for"
        " sending; without it, the flush may take as long as it makes progress, and sending 5 s",
        unit="s",
        takes_none=True,
    )
    handle_signals: bool = _option(
        True, BOOLEAN, "flush at SIGTERM and SIGINT, then call the previous handlers"
    )
    log_correlation: bool = _option(
        False, BOOLEAN, "add the trace and span id to the application's log records"
    )

    @property
    def platform_context(self) -> dict[str, str]:
        """The ids that the platform assigned to this run, keyed by option name."""
        names = ("workspace_id", "run_id", "pipeline_id", "deployment_id", "model_id")
        ids = {name: getattr(self, name) for name in names}
        return {name: value for name, value in ids.items() if value is not None}


class Option(NamedTuple):
    """One row of the table of options."""

    name: str
    default: Any
    key: Key

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"CIRRON_{self.name.upper()}"


OPTIONS: Final = tuple(
    Option(each.name, each.default, each.metadata["key"]) for each in fields(Config)
)
