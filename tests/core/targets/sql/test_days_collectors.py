"""Three collectors, as processes, that share one PostgreSQL: killed, with requests sent twice."""

from __future__ import annotations

import http.client
import random
import urllib.request
from collections import Counter
from pathlib import Path

from cirron_otel.core.targets.sql.storage import Storage
from tests.kit.servers.serving import Serving
from tests.kit.spools.deliveries import until

from .helpers import column
from .test_days_crash import assert_received
from .test_received import expected_names, names, traces

REQUESTS = 90
TRIES = 20


def accepted(collector: Serving, body: bytes) -> bool:
    """Send a request; return whether it was acknowledged."""
    request = urllib.request.Request(
        f"{collector.http}/v1/traces", body, {"content-type": "application/x-protobuf"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return bool(response.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def test_every_acknowledged_request_is_stored_once(postgres_url: str, tmp_path: Path) -> None:
    """They start at once on an empty database; each is killed twice, and starts again."""
    chance = random.Random(3)

    def start(number: int) -> Serving:
        return Serving(tmp_path / f"collector-{number}", "--storage", postgres_url)

    collectors = [start(number) for number in range(3)]
    try:
        for content in range(REQUESTS):
            body = traces((content, content + 1000))
            order = chance.sample(range(3), 3)
            if content % 15 == 7:  # it may have stored what it does not acknowledge any more
                collectors[order[0]].process.kill()
            sent = [number for number in order if accepted(collectors[number], body)]
            tries = 0
            while not sent and tries < TRIES:
                sent, tries = [n for n in order if accepted(collectors[n], body)], tries + 1
            assert sent
            if content % 15 == 7:
                collectors[order[0]].kill()
                collectors[order[0]] = start(order[0])
        expected = expected_names([(c, c + 1000) for c in range(REQUESTS)])
        with Storage.open(postgres_url) as storage:
            until(lambda: names(storage) == expected, 300)
            # Each collector delivers all that it has, and this is known already.
            assert [each.end() for each in collectors] == [0, 0, 0]
            assert names(storage) == expected
            assert_received(storage)
            assert column(storage, 'SELECT COUNT(*) FROM "TraceDay"')[0] >= 3
            assert Counter(column(storage, 'SELECT "version" FROM "TraceStorage"')) == Counter(
                range(1, 7)
            )
    finally:
        for each in collectors:
            if each.process.poll() is None:
                each.kill()
