"""Batches of one tenant that the database does not take: those of others are stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from cirron_otel.collector.service.metrics import Registry
from cirron_otel.collector.service.owned_rows import OwnedRows
from cirron_otel.collector.service.target_sender import TargetSender
from cirron_otel.core.spool.dead_letters import dead_letters
from cirron_otel.core.targets.sql.ownership import OwnerContext
from cirron_otel.core.targets.sql.storage import Storage
from tests.collector.service.test_isolation import Spool
from tests.kit.spools.deliveries import until

from .helpers import column

COUNT = 3


def refuse(url: str, code: str) -> None:
    """Have the database fail for spans of one name, with an SQLSTATE if it has those."""
    with Storage.open(url) as storage:
        run = storage.database.run
        if url.startswith("sqlite"):
            run(
                'CREATE TRIGGER odd BEFORE INSERT ON "TraceSpan" WHEN NEW."name" LIKE \'bad%\''
                " BEGIN SELECT RAISE(ABORT, 'not this one'); END"
            )
            return
        run(
            "CREATE FUNCTION odd() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF NEW.\"name\" = 'bad' THEN RAISE 'not this one' USING ERRCODE = "
            f"'{code}'; END IF; RETURN NEW; END $$"
        )
        run('CREATE TRIGGER odd BEFORE INSERT ON "TraceSpan" FOR EACH ROW EXECUTE FUNCTION odd()')


@pytest.mark.parametrize("code", ["23514", "53100"], ids=["a constraint", "no room"])
def test_a_database_that_does_not_take_one_tenants_batches(
    url: str, code: str, tmp_path: Path
) -> None:
    """For good, which makes them dead letters, or for now, which leaves them in the spool."""
    refuse(url, code)
    spool = Spool(tmp_path / "data")
    for turn in range(COUNT):
        spool.put("bad", "bad")
        spool.put("good", f"good-{turn}")
    rows = OwnedRows(url, OwnerContext(), spool.headers_of)
    sending = TargetSender(spool.paths, rows, Registry(), "database")
    stored = [f"good-{turn}" for turn in range(COUNT)]
    try:
        with Storage.open(url) as storage:
            names = 'SELECT "name" FROM "TraceSpan" ORDER BY "name"'
            until(lambda: column(storage, names) == stored)
            stored.append("late")
            sending.stored([spool.put("good", "late")])
            until(lambda: column(storage, names) == stored)
            is_final = url.startswith("sqlite") or code == "23514"
            until(lambda: len(list(dead_letters(spool.paths))) == COUNT * is_final)
            # A batch is visible in the database before its delivery counts it as sent.
            until(lambda: sending.progress().waiting == COUNT * (not is_final))
    finally:
        sending.end(0.1)
