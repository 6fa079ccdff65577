"""The hooks into torch of one session, including the rank that torch.distributed assigns."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ...session.errors import record_error
from ...session.run_details import CONFIGURATION
from ...tracing.state import state
from ...tracing.trainings import nothing, trainings
from ..base import FrameworkHooks, HookContext, Part, RankCallback, install_parts
from ..patches import Patches
from ..step_engine import StepEngine, forget_engine, use_engine
from . import cuda
from .autograd import Autograd, Checkpoints
from .checkpoints import CheckpointFiles
from .collectives import Collectives
from .compiled import Compiled
from .configuration import Configuration
from .ddp import DdpTimes
from .digests import StepDigests
from .health import Losses, Norms, Scaling
from .keras import MODULE as KERAS
from .keras import KerasOptimizers
from .loaders import Accelerate, Loaders, RayTrain, announce_loaders
from .modules import Modules
from .one_pass import NODES
from .optimizers import OptimizerConstruction, Optimizers, Scaler
from .own_iteration import OwnIteration
from .recovery import finish
from .tensor_references import references
from .torch_state import TorchState
from .trackers import Trackers
from .transfers import Transfers
from .unclosed_phases import close_abandoned
from .upkeep import ScopeWrapper, Upkeep
from .workers import TORCHDATA, Workers


class Ranks:
    """Polls torch.distributed for the rank until there is a default process group.

    Programs that start their processes themselves, for example with torch.multiprocessing.spawn,
    set no variable: the rank is an argument of `init_process_group`. That function is not replaced,
    because other libraries call it under their own names.
    """

    def __init__(self, callback: Callable[[int, int], None]) -> None:
        """`callback` is called once, with the rank and the number of processes."""
        self._callback = callback
        self._is_known = False

    def poll(self) -> None:
        """Poll once. Raises nothing. May be called from any thread, and more than once."""
        if self._is_known:
            return
        try:
            distributed: Any = sys.modules.get("torch.distributed")
            if distributed is None or not distributed.is_available():
                return
            if distributed.is_initialized():
                self._is_known = True
                self._callback(int(distributed.get_rank()), int(distributed.get_world_size()))
        except Exception as error:
            record_error("rank", error)


class TorchHooks(FrameworkHooks):
    """The hooks of one session, which are installed once and removed once.

    The constructor imports torch.
    """

    def __init__(self) -> None:
        self.torch_state = TorchState()
        self.patches = Patches()
        self.trackers = Trackers(self.torch_state)
        self._optimizers = Optimizers(self.trackers)
        self._modules = Modules(self.trackers, self.torch_state, self.patches)
        self._compiled = Compiled(self.trackers)
        self._wrapper = ScopeWrapper(self.trackers)
        self._upkeep = Upkeep(self._wrapper, self.patches)
        self._files = CheckpointFiles(self._wrapper, self.patches)
        self._parents: Any = None
        """In a forked child, the parent's clock."""
        self.workers: Workers | None = None
        """Traces the worker processes of a DataLoader, unless that is turned off."""
        self._losses: Losses | None = None
        self._marks_ddp = False
        self._before_loading: Callable[[], object] | None = None
        self._digests: StepDigests | None = None
        """Digests the tensors of steps, if that is requested."""
        self.not_recorded: list[str] = []
        """The parts that this version of torch does not allow to be hooked."""

    def _engine(self) -> StepEngine:
        """Return the tracker of the calling thread, for the loops of other frameworks."""
        return self.trackers.t

    def ask_rank(self, callback: RankCallback) -> None:
        """Call `callback` with rank and world size once torch.distributed has assigned them."""
        poll = self.torch_state.poll_rank = Ranks(callback).poll
        poll()

    def install(self, context: HookContext) -> None:
        """Hook the parts of torch now, and those of other modules when they are imported.

        A part that this version of torch lacks is skipped, with one warning for each reason.
        """
        config, torch_state = context.config, self.torch_state
        if config.workers and context.worker_opener() is not None:
            self.workers = Workers(context.worker_opener, context.remove_all)
        torch_state.epoch_ended = context.epoch_ended
        self._losses = Losses(self.trackers) if config.mark_loss else None
        self._upkeep.norms = Norms(self.trackers) if config.mark_grad_norm else None
        self._marks_ddp = config.ddp_times
        torch_state.trainings.is_on = config.trainings
        trainings.forget_optimizers = torch_state.trainings.forget
        if config.digest is not None:
            self._digests = StepDigests(self.trackers, torch_state)
        torch_state.detail_every = config.detail_every or 0
        torch_state.memory = cuda.memory_of(config)
        torch_state.configuration = Configuration(is_recorded=CONFIGURATION in config.run_details)
        self._before_loading = context.before_loading
        self._install_torch(cuda.clock_of(config, torch_state.memory), cuda.devices())
        use_engine(self._engine, close_abandoned)
        for module, install in self._later().items():
            context.on_import(module, install)
        state.fetched = True

    def _install_torch(self, clock: Any, devices: frozenset[str]) -> None:
        """Hook torch itself. Raises nothing.

        `clock` measures time on a device (see clock.py), or is None. `devices` are the device types
        to which copies are recorded.
        """
        self.torch_state.clock = clock
        if clock is not None:
            self.torch_state.has_step_end_hook, self.torch_state.on_step_end = True, clock.poll
        for tracker in tuple(self.torch_state.trackers):
            tracker.clock = clock
        trackers, patches, torch_state = self.trackers, self.patches, self.torch_state
        autograd = Autograd(trackers, torch_state, self._losses)
        parts: list[Part] = [
            ("data_load", self._install_loaders),
            ("own iteration", lambda: OwnIteration(trackers).install(patches)),
            ("forward", self._modules.install),
            ("backward", lambda: autograd.install(patches, "backward")),
            ("autograd.grad", lambda: autograd.install(patches, "grad")),
            ("recompute", lambda: Checkpoints(trackers).install(patches)),
            ("recompute without reentrance", lambda: Checkpoints(trackers).install_other(patches)),
            ("optimizer_step", self._optimizers.install),
            ("calls of optimizers", lambda: self._install_calls(patches)),
            ("new optimizers", lambda: OptimizerConstruction(torch_state).install(patches)),
            ("skipped", lambda: self._install_scaler(patches)),
            ("zero_grad", self._upkeep.zero_grad),
            ("conversions of parameters", lambda: references.install(patches)),
            ("clip_grad", self._upkeep.clip_grad),
            ("scheduler_step", self._upkeep.scheduler),
            ("checkpoints", self._files.torch),
            ("collective", Collectives(self._wrapper, patches).install),
        ]
        if self._marks_ddp:
            parts.append(("DDP's times", lambda: DdpTimes().install(patches)))
        if self.workers is not None:
            workers = self.workers
            parts.append(("workers", lambda: workers.install(patches)))
        if clock is not None:
            parts.append(("captures of CUDA graphs", lambda: clock.install(patches)))
        if devices:
            parts.append(
                ("h2d", lambda: Transfers(trackers, torch_state, devices).install(patches))
            )
        digests = self._digests
        if digests is not None:  # the last part, because its hooks surround the others
            parts.append(("digests", lambda: digests.install(patches)))
        self._install(parts)

    def _install_loaders(self) -> None:
        Loaders(self.trackers).install(self.patches)
        announce_loaders(self.patches, self.torch_state.configuration, self._before_loading)

    def _install_calls(self, patches: Patches) -> None:
        if self._optimizers.is_installed and self._digests is None:  # digests precede the scope
            self._optimizers.install_calls(patches)

    def _install_scaler(self, patches: Patches) -> None:
        if self._losses is not None or self._upkeep.norms is not None:
            Scaling(self.trackers).install(patches)
        if self._optimizers.is_installed:  # otherwise every step would seem to be skipped
            Scaler(self.trackers).install(patches)

    def _later(self) -> dict[str, Callable[[Any], None]]:
        """Return the functions that hook modules which may be imported later, by module."""
        trackers, patches, workers = self.trackers, self.patches, self.workers
        installers: dict[str, Callable[[Any], None]] = {
            "torch._dynamo.eval_frame": lambda module: self._install(
                [("compiled functions", lambda: self._compiled.install(patches, module))]
            ),
            "safetensors.torch": lambda module: self._install(
                [("safetensors", lambda: self._files.safetensors(module))]
            ),
            "torch.distributed.checkpoint": lambda module: self._install(
                [("distributed checkpoints", lambda: self._files.distributed(module))]
            ),
            NODES: lambda module: self._install(
                [("torchdata.nodes", lambda: Loaders(trackers).install_nodes(patches, module))]
            ),
            KERAS: lambda module: self._install(
                [("keras", lambda: KerasOptimizers(trackers).install(patches, module))]
            ),
            "accelerate.data_loader": lambda module: self._install(
                [("accelerate", lambda: Accelerate(trackers).install(patches, module))]
            ),
            "ray.train.torch.train_loop_utils": lambda module: self._install(
                [("ray", lambda: RayTrain(trackers).install(patches, module))]
            ),
        }
        if workers is not None:
            installers[TORCHDATA] = lambda module: self._install(
                [("torchdata's workers", lambda: workers.replace(patches, module))]
            )
        return installers

    def _install(self, parts: list[Part]) -> None:
        self.not_recorded += install_parts("torch", parts)
        self.patches.replace_copies()

    def health(self) -> dict[str, Any]:
        """Return the parts that are not recorded."""
        return {"not_recorded": list(self.not_recorded)}

    def on_flush(self) -> None:
        """Finish the phases that have waited too long for a device, or for another copy."""
        self.torch_state.poll_rank()
        for tracker in tuple(self.torch_state.trackers):
            copies = tracker.copies
            if copies is not None:
                copies.finish_if_stale()
        if self.torch_state.clock is not None:
            self.torch_state.clock.expire()

    def after_fork(self) -> None:
        """In a forked child, reset the state: there is one thread, and it is not in a loop."""
        self._parents = self._parents or self.torch_state.clock  # must not be destroyed here
        self.torch_state.clock = self.torch_state.memory = None  # a child cannot use the device
        self.torch_state.stop_polling_device()
        self.torch_state.trackers.clear()
        self.trackers.renew()

    def remove(self) -> None:
        """Remove every hook, and close the open scopes. Raises nothing."""
        state.fetched = False
        trainings.forget_optimizers = nothing
        try:
            forget_engine(self._engine)
            self.torch_state.stop()
            self.patches.undo()
            self.patches.restore_all_copies()
            self._optimizers.remove()
            if self._digests is not None:
                self._digests.remove()
            for tracker in tuple(self.torch_state.trackers):
                finish(tracker)
            if self.torch_state.clock is not None:
                self.torch_state.clock.close()
        except Exception as error:
            record_error("torch", error)
        references.release_all()
