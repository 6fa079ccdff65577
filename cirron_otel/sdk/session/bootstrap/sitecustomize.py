"""The module that `cirron-otel run` makes every Python child process import at start.

Its directory is first on PYTHONPATH and contains nothing else. The module imports only the standard
library and waits for imports, so it does not affect a process that never imports a framework or
opens a scope of cirron-otel. It runs in interpreters of any version, with or without this package,
so it uses old syntax, and a failure prints at most one line to stderr.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# ruff: noqa: PLC0415, SIM105, UP031 - few imports; old interpreters

import atexit
import os
import sys
import time
from importlib.machinery import PathFinder

_BEGUN = time.monotonic_ns() if hasattr(time, "monotonic_ns") else None
_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs 5 ms
_NAME = "sitecustomize"
_OURS = (
    "cirron_otel.sdk.session.api",
    "cirron_otel.sdk.session.handle",
    "cirron_otel.sdk.session.waiting",
    "cirron_otel.sdk.instrumentation.installing",
    "cirron_otel.sdk.instrumentation.sklearn.wrapping",
    "cirron_otel.sdk.tracing.scope",
)
_FRAMEWORKS = ("torch", "tensorflow", "ray.train", "ray.tune")
_LOGGERS = ("mlflow", "tensorboardX", "wandb")
_MET = _FRAMEWORKS + _LOGGERS + _OURS
"""Modules whose import shows that the process may have something to record. The frameworks that are
not named here import one that is."""

_UNHOOKED = (("jax", "JAX"),)
"""Modules of frameworks that are not hooked, and the names of these frameworks."""


class _Finder(object):  # noqa: UP004 - for any interpreter
    """A finder that asks the other finders for a module, and calls `_met` when it is imported."""

    def find_spec(self, name, path=None, target=None):
        if name not in _MET:
            return None
        for finder in list(sys.meta_path):
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _tell_when_loaded(spec.loader, self)
                return spec
        return None


def _tell_when_loaded(loader, finder):
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module):
        loader.__dict__.pop("exec_module", None)
        try:
            execute(module)
        except BaseException as error:
            trace = error.__traceback__
            if trace is not None:
                error.__traceback__ = trace.tb_next  # without this frame
            raise
        # The module is complete; importlib sets this flag only a moment later.
        module.__spec__._initializing = False
        _met(module.__name__, finder)

    try:
        # Warnings skip the frames of the import system, as cirron_otel.sdk.tracing.hidden_frames
        # explains.
        exec_module.__code__ = exec_module.__code__.replace(
            co_filename=__file__ + " (importlib._bootstrap)"
        )
    except AttributeError:
        pass  # before Python 3.8
    try:
        loader.exec_module = exec_module
    except AttributeError:
        pass  # an unsupported loader: this process is not recorded


def _is_loading(name):
    module = sys.modules.get(name)
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _met(name, finder):
    # If a module that imports this one is being imported, its end calls this function again.
    if name in _OURS and any(map(_is_loading, _OURS)):
        return
    if finder in sys.meta_path:
        sys.meta_path.remove(finder)
    try:
        from cirron_otel.sdk.session.waiting import wait_for_session

        wait_for_session(_BEGUN)
    except Exception as error:
        _say(
            "%s cannot import cirron-otel (%s: %s): this process is not recorded"
            % (sys.executable, type(error).__name__, " ".join(str(error).split()))
        )


def _ended(finder):
    """Report at exit that nothing was recorded because a framework is not hooked."""
    if finder not in sys.meta_path or os.environ.get("RANK", "0") != "0":
        return  # something was recorded, or another process reports it
    for module, framework in _UNHOOKED:
        if module in sys.modules:
            _say(
                "%s is not hooked, so nothing was recorded: put each step of the loop into"
                " `with cirron_otel.scope('step'):`" % framework
            )


def _say(text):
    try:
        sys.stderr.write("cirron-otel: " + text + "\n")
    except Exception:  # noqa: S110 - stderr is closed
        pass


def _others():
    """Run the next sitecustomize on the path as if this one did not exist."""
    spec = PathFinder.find_spec(_NAME)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    ours = sys.modules.get(_NAME)
    sys.modules[_NAME] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if ours is not None:
            sys.modules[_NAME] = ours
        raise


if os.environ.get("PYTHONPATH") == _HERE + os.pathsep:
    # Ray has appended the variable that its cluster lacks. Python takes an empty entry for the
    # working directory, which is not on the path otherwise.
    os.environ["PYTHONPATH"] = _HERE
    _at = sys.path.index(_HERE) + 1 if _HERE in sys.path else len(sys.path)
    if sys.path[_at : _at + 1] == [os.getcwd()]:  # noqa: PTH109 - pathlib costs 5 ms
        del sys.path[_at]

sys.path[:] = [each for each in sys.path if each != _HERE]
_finder = _Finder()
sys.meta_path.insert(0, _finder)
atexit.register(_ended, _finder)
_others()
