"""`cirron-otel collector`: receive OTLP and Cirron batches, store them, and forward them."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, NoReturn

import click

from ...errors import UsageError
from ..present.formatting import printable
from . import output

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...collector.service.config_file import ConfigError, Loaded

logger = logging.getLogger("cirron_otel.collector.service")

_LEVELS = ("debug", "info", "warning", "error")


@click.command(short_help="Receive OTLP and Cirron batches, store them, and forward them.")
@click.option(
    "--config",
    "file",
    metavar="FILE",
    type=click.Path(),
    help="A YAML file with all options (docs/collector.md).",
)
@click.option("--spool", metavar="DIR", help="The directory of the spool; default: .cirron.")
@click.option(
    "--storage",
    metavar="URL",
    help="The database for the platform's tables: sqlite:///FILE or postgresql://…",
)
@click.option(
    "--blobs", metavar="URL", help="The store of snapshot files: a directory or s3://BUCKET/…"
)
@click.option("--parquet", metavar="URL", help="Columnar tables: a directory or s3://BUCKET/…")
@click.option(
    "--grpc",
    metavar="HOST:PORT",
    help="The address for gRPC; default: localhost:4317; `off` disables it.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="The address for HTTP; default: localhost:4318; `off` disables it.",
)
@click.option(
    "--traceml",
    metavar="HOST:PORT",
    help="The address for TraceML's processes; default: off.",
)
@click.option(
    "--traceml-forward",
    metavar="HOST:PORT",
    help="The address of TraceML's aggregator, to which its processes' data is passed on.",
)
@click.option(
    "--log-level",
    type=click.Choice(_LEVELS),
    help="The lowest level that is logged; default: info.",
)
@click.option(
    "--check",
    is_flag=False,
    flag_value="online",
    metavar="[=offline]",
    type=click.Choice(("online", "offline")),
    help="Check the configuration and exit: try its directories and targets, unless `offline`.",
)
@click.option(
    "--print-config", is_flag=True, help="Print the configuration without secrets and exit."
)
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document to stdout.")
def collector(
    file: str | None,
    check: str | None,
    print_config: bool,
    as_json: bool,
    **flags: str | None,
) -> int:
    """Receive OTLP, Cirron's batches and TraceML's frames until Ctrl-C or SIGTERM.

    Acknowledged data is stored in a spool and, if configured, in a database, a blob store and other
    endpoints. Port 0 picks a free port; the addresses are printed once all servers are listening.
    """
    from ...collector.service.config_file import ConfigError, load_options
    from ...collector.service.extra import require

    overrides = {
        f"--{name.replace('_', '-')}": value for name, value in flags.items() if value is not None
    }
    try:
        loaded = load_options(file, overrides)
    except ConfigError as error:
        _refuse(error)
    if print_config:
        return _print(loaded, as_json)
    require()
    if check is not None:
        if check == "online":
            loaded = _try(loaded)
        return _check(loaded, file, as_json)
    return _serve(loaded, as_json, lambda: load_options(file, overrides))


def _serve(loaded: Loaded, as_json: bool, read: Callable[[], Loaded]) -> int:
    import asyncio

    from ...collector.service.event_loop import new_event_loop
    from ...collector.service.logs import Logging
    from ...collector.service.options_tree import secrets_of
    from ...collector.service.service import run

    def announce(addresses: dict[str, str]) -> None:
        if as_json:
            output.document(addresses)
            output.flush()
        else:
            shown = ", ".join(f"{name} on {address}" for name, address in addresses.items())
            logger.info("listening: %s", shown)

    # gRPC's core writes lines to stderr that are not JSON. The receiver counts and logs what gRPC
    # refuses; GRPC_VERBOSITY=error restores the lines.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # uvloop forks to start a process, and gRPC's fork handlers would report on stderr that they
    # give up. No child uses gRPC's state: each executes another program at once.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    with (
        Logging(loaded.options.logs, secrets_of(loaded.options)) as logs,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        for warning in loaded.warnings:
            logger.warning("%s", warning, extra={"cause": warning})
        return runner.run(run(loaded.options, announce, read, logs))


def _refuse(error: ConfigError) -> NoReturn:
    """Report each problem on a separate line; the last is raised as the command's error."""
    *others, last = error.problems
    for problem in others:
        output.error(problem)
    raise UsageError(last) from None


def _print(loaded: Loaded, as_json: bool) -> int:
    from ...collector.service.options_tree import tree_of

    tree = tree_of(loaded.options)
    if as_json:
        output.document(tree)
    else:
        import yaml

        output.result(yaml.safe_dump(tree, sort_keys=False).rstrip())
    return 0


def _try(loaded: Loaded) -> Loaded:
    """Try all directories and targets; return the configuration with any new warnings.

    Reports each target that cannot be used; raises the last error.
    """
    from ...collector.service.target_checks import try_targets

    errors, warnings = try_targets(loaded.options)
    if errors:
        *others, last = errors
        for error in others:
            output.error(str(error))
        raise last
    return loaded._replace(warnings=(*loaded.warnings, *warnings))


def _check(loaded: Loaded, file: str | None, as_json: bool) -> int:
    if as_json:
        output.document({"config": file, "warnings": loaded.warnings})
        return 0
    for warning in loaded.warnings:
        output.message(f"warning: {warning}")
    output.result(f"{printable(file or 'the configuration')}: good")
    return 0
