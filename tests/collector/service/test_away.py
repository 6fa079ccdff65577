"""Twenty minutes of a job with every backend away: all is delivered after, each once."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from tests.conftest import leave_out
from tests.kit.backends.process import free_endpoints
from tests.kit.servers.away import (
    SPANS,
    STEPS,
    Platform,
    post,
    second,
    span_id,
    until,
)
from tests.kit.servers.otlp_sink import Sink, otlp_sink
from tests.kit.servers.serving import Serving

if TYPE_CHECKING:
    from .cluster import Cluster

SECONDS = 1200
EARLY, LATE = 20, 1000
"""So many batches come before the backends go away, and until the collector is restarted."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL of its own."""
    try:
        from tests.kit.backends.postgres import missing, postgres

        from .cluster import Cluster
    except ImportError as error:
        leave_out(f"psycopg cannot be imported ({error}): pip install 'cirron-otel[postgres]'")
    if reason := missing():
        leave_out(reason)
    with postgres() as server:
        cluster = Cluster(server)
        yield cluster
        cluster.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where fsync costs nothing, if there is such a place: what is asked here is not the disk."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=place) as found:
        yield Path(found)


@pytest.mark.slow
def test_twenty_minutes_without_any_backend(cluster: Cluster, folder: Path) -> None:
    platform_at, otlp_at = free_endpoints(2)
    url = cluster.new_database()
    config = folder / "collector.yaml"
    config.write_text(
        f"drain_s: 2\nstorage: {{url: '{url}'}}\nexporters:\n"
        f"  - {{type: cirron, endpoint: 'http://{platform_at}', api_key: k}}\n"
        f"  - {{type: otlp, endpoint: 'http://{otlp_at}'}}\n"
    )
    batches = [second(number) for number in range(SECONDS)]
    wanted, early_spans = SECONDS * STEPS * SPANS, EARLY * STEPS * SPANS

    def rows() -> int | None:
        return cluster.count('SELECT count(*) FROM "TraceSpan"', url)

    with contextlib.ExitStack() as stack:
        here = Serving(folder / "data", "--config", str(config))
        stack.callback(lambda: here.kill())  # noqa: PLW0108 - another one by then
        platform = Platform(platform_at)
        stack.callback(lambda: platform.kill())  # noqa: PLW0108
        with otlp_sink(otlp_at) as early:
            post(here.http, batches[:EARLY])
            until(lambda: rows() == early_spans)
            until(lambda: platform.count() == EARLY)
            until(lambda: len(spans_in(early)) == early_spans)
        taken = platform.stop()
        cluster.stop()

        post(here.http, batches[EARLY:LATE])
        until(lambda: stored(here.folder) == LATE)
        assert here.end() == 7  # for nobody takes anything
        here = Serving(folder / "data", "--config", str(config))
        post(here.http, batches[LATE:])

        # One by one: who is back does not wait for who is not.
        cluster.start()
        until(lambda: rows() == wanted)
        platform = Platform(platform_at)
        until(lambda: platform.count() == SECONDS - EARLY)
        with otlp_sink(otlp_at) as late:
            until(lambda: len(spans_in(late)) == wanted - early_spans)
            assert here.end() == 0
        taken += platform.stop()
    assert rows() == wanted
    assert sorted(taken) == [f"{number:032x}" for number in range(SECONDS)]
    assert Counter(spans_in(early) + spans_in(late)) == Counter(map(otlp_id, range(wanted)))


def spans_in(sink: Sink) -> list[bytes]:
    """The ids of what came, each as often as it did.

    Markers and continuations of the traces that a run is cut into are no spans of the job.
    """
    found = [span for _, span in sink.spans]
    return [span.span_id for span in found if not any(map(_is_synthetic, span.attributes))]


def _is_synthetic(attribute: KeyValue) -> bool:
    return attribute.key == "cirron.synthetic"


def otlp_id(number: int) -> bytes:
    return bytes.fromhex(span_id(number))[:8]


def stored(folder: Path) -> int:
    return len(list((folder / "spool").glob("*.json")))
