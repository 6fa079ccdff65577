"""The delay of good batches among batches that an endpoint refuses, by transport."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from tests.collector.service.test_isolation import (
    ENDPOINTS,
    UNSENDABLE,
    Spool,
    by_tenant,
)

_POLL_S, _GIVE_UP_S = 0.002, 30.0


@dataclass
class Delays:
    """The delays of the good batches of one transport, in seconds, in ascending order."""

    protocol: str
    kinds: int
    """The kinds of refusal that are among the good batches."""
    seconds: list[float]


def delays(folder: Path, turns: int) -> list[Delays]:
    """Send one batch of each kind of refusal and then a good one, `turns` times.

    A delay runs from the moment when the good batch is in the spool until the endpoint accepts it.
    """
    logging.getLogger("cirron_otel").setLevel(logging.CRITICAL)  # a line for each refusal
    results = []
    for protocol, (serve, kinds) in ENDPOINTS.items():
        tenants = {**dict.fromkeys(kinds), **UNSENDABLE}
        spool = Spool(folder / protocol.partition("/")[0])
        seconds = []
        with (
            serve(by_tenant(kinds)) as endpoint,
            spool.followed(endpoint, protocol, passes=True),
        ):
            for turn in range(turns):
                for kind, tenant in tenants.items():
                    spool.put(tenant or kind, f"{kind}-{turn}")
                spool.put("good", f"good-{turn}")
                begin = time.monotonic()
                while (delay := time.monotonic() - begin) < _GIVE_UP_S:
                    if f"good-{turn}" in endpoint.names():
                        break
                    time.sleep(_POLL_S)
                seconds.append(delay)
                time.sleep(0.2)
        results.append(Delays(protocol, len(tenants), sorted(seconds)))
    return results
