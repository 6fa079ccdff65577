"""`cirron-otel spool`: inspect, verify, prune or recover a spool, or send its unsent batches."""

from __future__ import annotations

import click

from .spool_dead_letters import dead_letters
from .spool_flush import flush
from .spool_ls import ls
from .spool_prune import prune
from .spool_recover import recover
from .spool_show import show
from .spool_verify import verify


@click.group()
def spool() -> None:
    """Look at a spool, verify it, prune it, recover it, send what is left.

    DIR is a directory that holds spool/ or .cirron/spool/, or is it; ./.cirron by default.
    """


for _command in (ls, show, verify, prune, recover, flush, dead_letters):
    spool.add_command(_command)
