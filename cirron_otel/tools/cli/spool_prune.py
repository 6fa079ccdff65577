"""`cirron-otel spool prune`: drop the oldest batches and the snapshot files that only they use."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import time
from typing import Any

import click

from ...errors import UsageError
from ..present.formatting import count, printable, size
from . import output
from .parameters import age_in_ns, json_option, size_in_bytes, spool_argument
from .pruning import PrunePlan, Removal, plan, remove


@click.command(short_help="Drop the oldest batches.")
@spool_argument
@click.option(
    "--max-bytes",
    type=size_in_bytes,
    metavar="SIZE",
    help="Drop the oldest batches until the rest, with snapshot files, has this size: 500MB, 1GiB.",
)
@click.option(
    "--older-than",
    "age_ns",
    type=age_in_ns,
    metavar="AGE",
    help="Drop batches that were sealed longer ago than this: 90s, 30m, 12h, 7d, 2w.",
)
@click.option("--dry-run", is_flag=True, help="List what would be dropped, and drop nothing.")
@json_option
def prune(
    directory: str, max_bytes: int | None, age_ns: int | None, dry_run: bool, as_json: bool
) -> int:
    """Drop the oldest batches, and the snapshot files that only they use."""
    from ...core.spool.paths import find_spool

    if max_bytes is None and age_ns is None:
        raise UsageError(
            "name what to drop with --max-bytes or --older-than (and --dry-run to try)"
        )
    paths = find_spool(directory)
    before_ns = None if age_ns is None else time.time_ns() - age_ns
    prune_plan = plan(paths, max_bytes=max_bytes, before_ns=before_ns)
    for removal in prune_plan.removals:
        if not dry_run:
            remove(paths, removal)
        if not as_json:
            _show(removal, dry_run)
    if as_json:
        output.document({"path": str(paths.spool), "dry_run": dry_run, **_to_json(prune_plan)})
    else:
        output.result(f"{printable(str(paths.spool))}: {_summary(prune_plan, dry_run)}")
    return 0


def _show(removal: Removal, dry_run: bool) -> None:
    verb = "would drop" if dry_run else "dropped"
    for name in removal.files:
        output.result(f"{verb} {printable(name)}")


def _summary(found: PrunePlan, dry_run: bool) -> str:
    verb = "would drop" if dry_run else "dropped"
    bundles = f", {count(found.bundles, 'OOM bundle')}" if found.bundles else ""
    return (
        f"{verb} {count(found.batches, 'batch', 'batches')}{bundles} and"
        f" {count(found.blobs, 'snapshot file')} ({size(found.dropped_bytes)});"
        f" {count(found.kept_batches, 'batch', 'batches')} ({size(found.kept_bytes)} with snapshot"
        " files) remain"
    )


def _to_json(found: PrunePlan) -> dict[str, Any]:
    return {
        "batches": found.batches,
        "blobs": found.blobs,
        "bundles": found.bundles,
        "bytes": found.dropped_bytes,
        "kept_batches": found.kept_batches,
        "kept_bytes": found.kept_bytes,
        "dropped": [name for removal in found.removals for name in removal.files],
    }
