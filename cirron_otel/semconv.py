"""The attribute names and span names of the mapping. docs/otlp-mapping.md defines each of them."""

from __future__ import annotations

SCOPE_NAME = "cirron"
"""The name of the instrumentation scope of every Cirron batch."""

SESSION = "cirron.session"
"""The name of a session's root scope."""
JOB = "cirron.job"
"""The name of the scope of `cirron-otel run`."""
MICRO_STEP = "micro_step"
"""The name of the scope of one step of gradient accumulation."""

TRAINING = "training"
"""The attribute of a step with the number of its training within the process; absent for 0. A mark
of this name at the beginning of a training has the number."""
TRAINING_NAME = "name"
"""The attribute of that mark with the name of the training."""

# Resource
SERVICE_NAME = "service.name"
DEFAULT_SERVICE_NAME = "cirron"
PROCESS_PID = "process.pid"
RANK = "cirron.rank"
SESSION_ID = "cirron.session.id"
WORKSPACE_ID = "cirron.workspace.id"
RUN_ID = "cirron.run.id"
RUN_NAME = "cirron.run.name"
PIPELINE_ID = "cirron.pipeline.id"
DEPLOYMENT_ID = "cirron.deployment.id"
MODEL_ID = "cirron.model.id"
JOB_ID = "cirron.job.id"
WORLD_SIZE = "cirron.world_size"

POINT_ATTRIBUTES = (RANK, RUN_ID, RUN_NAME)
"""The attributes of the resource that each point of a metric repeats."""

# Resource: the description of a run, which metrics leave out
ARGUMENTS = "process.command_args"
DISTRO_NAME = "telemetry.distro.name"
DISTRO_VERSION = "telemetry.distro.version"
HOST_NAME = "host.name"
COMMIT = "vcs.ref.head.revision"
BRANCH = "vcs.ref.head.name"
DIRTY = "cirron.git.dirty"
TORCH_VERSION = "cirron.torch.version"
CUDA_VERSION = "cirron.cuda.version"
HYPERPARAMETER = "cirron.config."

# Resource: the configuration of a training, which docs/configuration.md lists
LOADER_WORKERS = "cirron.data_loader.workers"
LOADER_PREFETCH = "cirron.data_loader.prefetch_factor"
LOADER_PERSISTENT = "cirron.data_loader.persistent_workers"
LOADER_PINNED = "cirron.data_loader.pin_memory"
LOADER_BATCH_SIZE = "cirron.data_loader.batch_size"
LOADER_DROP_LAST = "cirron.data_loader.drop_last"
LOADER_SAMPLER = "cirron.data_loader.sampler"
MODEL_CLASS = "cirron.model.class"
MODEL_PARAMETERS = "cirron.model.parameters"
MODEL_TRAINABLE = "cirron.model.trainable_parameters"
MODEL_DTYPE = "cirron.model.dtype"
MODEL_DEVICE = "cirron.model.device"
MODEL_COMPILED = "cirron.model.compiled"
AUTOCAST = "cirron.autocast.dtype"
OPTIMIZER_NAME = "cirron.optimizer.name"
OPTIMIZER_LEARNING_RATE = "cirron.optimizer.learning_rate"
OPTIMIZER_FOREACH = "cirron.optimizer.foreach"
OPTIMIZER_FUSED = "cirron.optimizer.fused"
DDP_BUCKET_BYTES = "cirron.ddp.bucket_bytes"
DDP_STATIC_GRAPH = "cirron.ddp.static_graph"
DDP_FIND_UNUSED = "cirron.ddp.find_unused_parameters"
DDP_BUCKET_VIEW = "cirron.ddp.gradient_as_bucket_view"
FSDP_VERSION = "cirron.fsdp.version"
TORCH_THREADS = "cirron.torch.threads"
TORCH_INTEROP_THREADS = "cirron.torch.interop_threads"
CPU_COUNT = "cirron.cpu.count"
CPU_ALLOWED = "cirron.cpu.allowed"
CPU_LIMIT = "cirron.cpu.limit"
MEMORY_LIMIT = "cirron.memory.limit_bytes"
CONFIGURATION = frozenset({
    LOADER_WORKERS, LOADER_PREFETCH, LOADER_PERSISTENT, LOADER_PINNED, LOADER_BATCH_SIZE,
    LOADER_DROP_LAST, LOADER_SAMPLER, MODEL_CLASS, MODEL_PARAMETERS, MODEL_TRAINABLE, MODEL_DTYPE,
    MODEL_DEVICE, MODEL_COMPILED, AUTOCAST, OPTIMIZER_NAME, OPTIMIZER_LEARNING_RATE,
    OPTIMIZER_FOREACH, OPTIMIZER_FUSED, DDP_BUCKET_BYTES, DDP_STATIC_GRAPH, DDP_FIND_UNUSED,
    DDP_BUCKET_VIEW, FSDP_VERSION, TORCH_THREADS, TORCH_INTEROP_THREADS, CPU_COUNT, CPU_ALLOWED,
    CPU_LIMIT, MEMORY_LIMIT,
})  # fmt: skip
_DESCRIPTIONS = frozenset({
    ARGUMENTS, DISTRO_NAME, DISTRO_VERSION, COMMIT, BRANCH, DIRTY, TORCH_VERSION, CUDA_VERSION,
})  # fmt: skip


def describes_run(attribute: str) -> bool:
    """Return whether a resource attribute describes the run, and so is not one of its metrics."""
    return (
        attribute in _DESCRIPTIONS
        or attribute in CONFIGURATION
        or attribute.startswith(HYPERPARAMETER)
    )


SPEED_SETTINGS = (
    LOADER_BATCH_SIZE, LOADER_WORKERS, MODEL_DEVICE, AUTOCAST, MODEL_DTYPE, MODEL_COMPILED,
    MODEL_CLASS, MODEL_PARAMETERS, OPTIMIZER_NAME, OPTIMIZER_FUSED, OPTIMIZER_FOREACH,
    LOADER_PINNED, LOADER_PERSISTENT, LOADER_PREFETCH, DDP_BUCKET_BYTES, DDP_STATIC_GRAPH,
    DDP_FIND_UNUSED, DDP_BUCKET_VIEW, FSDP_VERSION, TORCH_THREADS, CPU_ALLOWED, CPU_LIMIT,
)  # fmt: skip
"""The parts of the configuration that affect the speed, the most likely cause first."""

# Scope: the batch's header
BATCH_ID = "cirron.batch.id"
BATCH_CREATED = "cirron.batch.created_ns"
BATCH_FILE = "cirron.batch.file"
BATCH_SPANS = "cirron.batch.spans"
BATCH_MARKS = "cirron.batch.marks"
BATCH_SNAPSHOTS = "cirron.batch.snapshots"
BATCH_SYNTHETIC = "cirron.batch.synthetic"
BATCH_SESSION = "cirron.batch.session"
BATCH_SESSION_TRACE_ID = "cirron.batch.session_trace_id"
BATCH_TRACE_ID = "cirron.batch.trace_id"
TRACE_IDS = "cirron.batch.trace_ids"
SERVICE_NAME_ADDED = "cirron.service_name_added"
ADDED_SERVICE_NAME = "cirron.added_service_name"
SCHEMA = "cirron.schema_version"
FOREIGN_BATCH = "cirron.otlp.batch"
"""A resource attribute in the header of a batch that was received as OTLP."""

# Span
ID = "cirron.id"
PARENT_ID = "cirron.parent_id"
INDEX = "cirron.index"
CPU_NS = "cirron.cpu_ns"
GPU_NS = "cirron.gpu_ns"
MEMORY_PEAK = "cirron.memory_peak_bytes"
COSTS = ((CPU_NS, "cpu_ns"), (GPU_NS, "gpu_ns"), (MEMORY_PEAK, "memory_peak_bytes"))
"""(OTLP attribute, record field) pairs for a scope's costs; unmeasured costs are null."""
OPTIONAL: tuple[tuple[str, str], ...] = ()
"""(OTLP attribute, record field) pairs for optional integers, which only exact mappers read."""
THREAD_ID = "thread.id"
SEQ = "cirron.seq"
TRACE_ID = "cirron.trace_id"
OVERHEAD_NS = "cirron.overhead_ns"
MORE_MARKS = "cirron.more_marks"
REST = "cirron.rest"

# Figures of a step, as attributes of its record: docs/otlp-mapping.md, "Steps"
UNIT_NS = "cirron.unit_ns"
WAITING_NS = "cirron.waiting_ns"
LOSS = "loss"
GRAD_NORM = "grad_norm"
"""The names of the marks of torch's hooks, and of many programs; `LOSS` is also an attribute."""
STEP_FIGURES = frozenset({UNIT_NS, WAITING_NS})
"""The attributes of a record whose names on the wire are the same, despite the reserved prefix."""

# Out-of-memory errors: docs/memory.md defines these names
OOM = "oom"
"""The mark whose value is the bytes requested."""
OOM_KILLS = "oom_kills"
"""The attribute of a scope that was closed for a dead process, or of a job: how many processes of
its cgroup the kernel has killed for lack of memory since it began."""
SAMPLE_INTERVAL = "sample_interval"
"""The attribute of a session with samples: the seconds between them."""
FAILURE_CAUSE = "failure_cause"
"""The attribute of a session that failed for a known cause."""
OUT_OF_MEMORY = "out of memory"
"""The value of `FAILURE_CAUSE` if an out-of-memory error ended the session."""
OOM_BUNDLE = "oom_bundle"
"""The attribute of a scope that contains the path of its bundle, relative to the spool's root."""

# Events
MARK_ID = "cirron.mark.id"
MARK_KIND = "cirron.mark.kind"
MARK_VALUE = "cirron.mark.value"
SNAPSHOT_PREFIX = "cirron.snapshot."
SNAPSHOT_REST = "cirron.snapshot.rest"

# Synthetic spans: they carry or represent other data; decoding drops them
SYNTHETIC = "cirron.synthetic"
CARRIER_SPAN_ID = "cirron.span_id"
MARKS_SPAN = "cirron.marks"
BATCH_SPAN = "cirron.batch"
CONTINUATION_SPAN = "cirron.continuation"
SEGMENT_SPAN = "cirron.segment"
RUNNING_SPAN = "cirron.running"
RUNNING_NAME = "cirron.running.name"

# Marks of the sampler: docs/memory.md defines each of them
MEMORY = "memory"
MEMORY_WARNING = "memory.warning"
MEMORY_CRITICAL = "memory.critical"
MEMORY_DEGRADED = "memory.degraded"
MEMORY_RECOVERED = "memory.recovered"
CPU_UTILIZATION = "process.cpu.utilization"
GPU_UTILIZATION = "hw.gpu.utilization"
GPU_TEMPERATURE = "hw.temperature"
GPU_POWER = "hw.power"
HW_ID = "hw.id"
CPU_WAIT_NS = "cirron.cpu_wait_ns"
"""The mark whose value is the time for which the training waited for a CPU since the mark of this
name ahead of it, ns."""
PLACE = "cirron.place"
"""The mark whose value is the line at which the program is, and the open scope:
`FILE:LINE (FUNCTION) in SCOPE`."""

# Marks of DistributedDataParallel's own times: docs/torch.md defines each of them
DDP_COMPUTE = "cirron.ddp.backward_compute_ns"
DDP_COMMUNICATION = "cirron.ddp.communication_ns"
DDP_EXPOSED = "cirron.ddp.exposed_ns"

# Metrics: docs/metrics.md defines each of them
STEP_DURATION = "cirron.step.duration"
PHASE_DURATION = "cirron.phase.duration"
PHASE_GPU_DURATION = "cirron.phase.gpu.duration"
REQUEST_DURATION = "cirron.request.duration"
SAMPLES = "cirron.samples"
MARK_GAUGE_PREFIX = "cirron.mark."
STEP_MEMORY_PEAK = "cirron.step.memory.peak"
UNITS = "cirron.units"
OUTSIDE_TIME = "cirron.outside.time"
CURRENT_EPOCH = "cirron.epoch"
CURRENT_STEP = "cirron.global_step"
STATUS = "cirron.status"
FINDINGS = "cirron.findings"
FINDING_COST = "cirron.finding.cost"
DROPS = "cirron.drops"
ERRORS = "cirron.errors"
MEMORY_USAGE = "process.memory.usage"
GPU_MEMORY_USAGE = "hw.gpu.memory.usage"
GPU_MEMORY_LIMIT = "hw.gpu.memory.limit"
"""OpenTelemetry's own metrics, from its semantic conventions for processes and for hardware. The
sampler's marks `CPU_UTILIZATION`, `GPU_UTILIZATION`, `GPU_TEMPERATURE` and `GPU_POWER` have the
names of theirs."""
MEMORY_ALLOCATOR = "cirron.memory.allocator"
MEMORY_ALLOCATOR_CHANGE = "cirron.memory.allocator.change"
MEMORY_GAP = "cirron.memory.gap"
HW_TYPE = "hw.type"
PHASE = "cirron.phase"
MARK_NAME = "cirron.mark.name"
UNIT = "cirron.unit"
ACCOUNT = "cirron.account"
FINDING_KIND = "cirron.finding.kind"
MEMORY_KIND = "cirron.memory.kind"
REASON = "cirron.reason"
OTHER = "_OTHER"
"""Replaces any additional names once there are too many (as in OpenTelemetry's `error.type`)."""

# The key of a user's attribute gets this prefix if it is reserved
ESCAPE = "cirron.attr."
RESERVED_PREFIX = "cirron."
RESERVED = frozenset({THREAD_ID, PROCESS_PID})


def needs_escape(key: str) -> bool:
    """Return whether the key of a record's attribute gets the prefix `ESCAPE` on the wire."""
    return (key.startswith(RESERVED_PREFIX) and key not in STEP_FIGURES) or key in RESERVED


REST_PIECE = 2000
"""The size of one piece of a residual, in bytes: Tempo truncates attributes at 2,048."""
MAX_EVENTS = 1000
"""The maximum number of events on one span."""
MAX_SPAN_BYTES = 1_000_000
"""The size limit of one encoded span in bytes, its residual included."""
MAX_DEPTH = 16
"""The maximum nesting of a value: each AnyValue uses three of the 100 levels that protobuf
parsers allow."""
