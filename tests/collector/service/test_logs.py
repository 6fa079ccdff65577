from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirron_otel.collector.service.logs import Formatter, Logging, Masking
from cirron_otel.collector.service.options import LogOptions

from .tables import DOCUMENT

logger = logging.getLogger("cirron_otel.collector.service.tests")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Written:
    """Logs that are written into a buffer."""

    def __init__(self, *secrets: str, **options: str) -> None:
        self.stream, self.clock = io.StringIO(), Clock()
        self.logging = Logging(LogOptions(**options), secrets, stream=self.stream, clock=self.clock)

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def written() -> Iterator[Written]:
    found = Written("sesame-token", "se")
    yield found
    found.logging.close()


class TestLines:
    def test_a_json_object_each(self, written: Written) -> None:
        logger.info("took %d", 3, extra={"fields": {"signal": "traces", "bytes": 7, "x": None}})
        (line,) = written.documents
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
        assert line == {
            "level": "info",
            "logger": "cirron_otel.collector.service.tests",
            "message": "took 3",
            "fields": {"signal": "traces", "bytes": 7, "x": None},
        }

    def test_the_lines_of_the_document(self) -> None:
        text = DOCUMENT.read_text().partition("## Logs")[2]
        (as_json,) = re.findall(r"```json\n(.*?)\n```", text, re.S)
        (as_text,) = re.findall(r"```text\n(.*?)\n```", text, re.S)
        shown = json.loads(as_json)
        for format, expected in (("json", as_json), ("text", as_text)):
            found = Written(format=format)
            record = logging.LogRecord(shown["logger"], 30, "", 0, shown["message"], (), None)
            record.created, record.fields = 1795245089.123, {"signal": "traces"}
            try:
                logger.handle(record)
                for _ in range(41):
                    logger.handle(record)
                found.clock.now += 60
                logger.handle(record)
            finally:
                found.logging.close()
            assert found.lines[1:] == [expected]

    def test_exception_is_logged_in_its_line_with_secrets_masked(self, written: Written) -> None:
        try:
            raise ValueError("sesame-token\nis wrong")
        except ValueError:
            logger.exception("it failed")
        (line,) = written.documents
        assert line["error"].startswith("Traceback")
        assert line["error"].endswith("ValueError: ****\nis wrong")

    def test_text_is_one_line_that_no_terminal_obeys(self) -> None:
        found = Written(format="text")
        try:
            logger.warning("a\nb\x1b[31m", extra={"fields": {"k": "c\nd"}})
            try:
                raise ValueError("x\ny")
            except ValueError:
                logger.exception("z")
        finally:
            found.logging.close()
        assert len(found.lines) == 2
        assert 'warning a\\nb\\x1b[31m k="c\\nd"' in found.lines[0]
        assert all(line.isprintable() for line in found.lines)

    def test_unformattable_records_do_not_fail(self) -> None:
        class Hostile:
            def __str__(self) -> str:
                raise RuntimeError

        fields = {"a": Hostile(), "b": [{1: b"x"}], "c": float("nan")}
        records = [
            logging.LogRecord("n", 20, "", 0, template, arguments, None)
            for template, arguments in (
                ("%s", (Hostile(),)),
                ("%d %d", ("one",)),
                (Hostile(), ()),
                ("x" * 100_000, ()),
            )
        ]
        records[0].fields = fields
        lines = [json.loads(Formatter(Masking(), "json").format(each)) for each in records]
        assert [line["message"] for line in lines[:3]] == ["%s", "%d %d", "a Hostile"]
        assert lines[0]["fields"]["b"] == [{"1": "b'x'"}]
        assert lines[0]["fields"]["c"] == "nan"
        assert len(lines[3]["message"]) < 11_000

    def test_levels(self, written: Written) -> None:
        logger.debug("no")
        logging.getLogger("another.library").info("no")
        logging.getLogger("another.library").warning("yes")
        written.logging.apply(LogOptions(level="debug", format="text"))
        logger.debug("yes")
        written.logging.apply(LogOptions(level="error"))
        logger.warning("no")
        logging.getLogger("another.library").warning("no, either")
        assert len(written.lines) == 2
        assert all("yes" in line for line in written.lines)

    def test_everything_is_as_it_was_afterwards(self) -> None:
        root = logging.getLogger()
        before = (root.level, root.handlers[:], logging.getLogger("cirron_otel").level)
        Written(level="debug").logging.close()
        assert (root.level, root.handlers, logging.getLogger("cirron_otel").level) == before

    def test_errors_and_warnings_reported_by_python_become_log_lines(
        self, written: Written
    ) -> None:
        class Bad:
            def __del__(self) -> None:
                raise ValueError("sesame-token")

        def fail() -> None:
            raise KeyError("in a thread")

        Bad()
        thread = threading.Thread(target=fail, name="worker-1")
        thread.start()
        thread.join()
        warnings.warn("a warning\nof two lines", stacklevel=1)
        unraisable, in_thread, warning = written.documents
        assert unraisable["error"].endswith("ValueError: ****")
        assert "worker-1" in in_thread["message"]
        assert in_thread["error"].endswith("KeyError: 'in a thread'")
        assert "of two lines" in warning["message"]

    def test_a_closed_stderr_ends_nothing(self) -> None:
        code = (
            "import logging, os\n"
            "from cirron_otel.collector.service.logs import Logging, LogOptions\n"
            "with Logging(LogOptions()):\n"
            "    for _ in range(3): logging.getLogger('cirron_otel').info('x' * 9000)\n"
            "os.write(1, b'ended')\n"
        )
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=write, check=False
        )
        os.close(write)
        assert done.stdout == b"ended"


class TestSecrets:
    def test_none_is_written(self, written: Written) -> None:
        logger.info(
            "it is %s", "sesame-token", extra={"fields": {"sesame-token": ["sesame-token"]}}
        )
        logger.info('a "sesame-token"\n')
        assert "sesame-token" not in written.stream.getvalue()
        assert written.documents[0]["message"] == "it is ****"
        assert written.documents[0]["fields"] == {"****": ["****"]}
        written.logging.masking.hide(["another-one"])
        logger.info("another-one")
        assert written.documents[2]["message"] == "****"

    def test_with_quotes_in_it(self) -> None:
        found = Written('q"uo\\te')
        try:
            logger.info('q"uo\\te')
        finally:
            found.logging.close()
        assert found.documents[0]["message"] == "****"

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("Authorization: Bearer abc.def-1", "Authorization: Bearer ****"),
            ("{'authorization': 'Basic YWJj='}", "{'authorization': 'Basic ****'}"),
            ("('Authorization', 'abc')", "('Authorization', '****')"),
            ("authorization=abc", "authorization=****"),
            ("x-api-key: abc, b", "x-api-key: ****, b"),
            ("postgresql://u:p@h/db and http://x@y", "postgresql://****@h/db and http://****@y"),
            ("nothing to hide", "nothing to hide"),
            ("Authorization: Bearer sesame", "Authorization: Bearer ****"),
            ("authorization=Basic a$b c", "authorization=Basic **** c"),
            ("sent Bearer token-1 and basic dXNlcg==", "sent Bearer **** and basic ****"),
            ("sent bearer eyJhbGciOiJ", "sent bearer ****"),
            ("sent bearer abcdefghijklmnopqrst", "sent bearer ****"),
            *(
                (text, text)
                for text in (
                    "the file of bearer tokens /etc/tokens is larger than 1 MiB",
                    "the bearer tokens were reloaded",
                    "Basic authentication is not taken, digest neither.",
                    "expected `Authorization: Bearer <token>` with an accepted token",
                    "expected the header `authorization: Bearer …`, with an accepted token",
                )
            ),
        ],
    )
    def test_credentials_are_masked_in_text(self, text: str, expected: str) -> None:
        assert Masking().text(text) == expected

    def test_one_that_holds_another(self) -> None:
        assert (
            Masking(["sesame", "Bearer sesame2", "sesame2"]).text("sesame2 sesame") == "**** ****"
        )

    @given(st.text(min_size=4), st.text(), st.text())
    def test_any_secret_is_taken_out(self, secret: str, before: str, after: str) -> None:
        found = Masking([secret]).text(before + secret + after)
        assert secret not in found or secret in "****" or "*" in secret


class TestRepeats:
    def test_a_cause_is_written_once_a_minute(self, written: Written) -> None:
        for at in range(5):
            logger.warning("away: %d", at)
            logger.warning("other")
        logger.error("away: %d", 9)
        written.clock.now += 59.9
        logger.warning("away: %d", 10)
        written.clock.now += 0.1
        logger.warning("away: %d", 11)
        logger.warning("away: %d", 12)
        assert [(line["message"], line.get("fields")) for line in written.documents] == [
            ("away: 0", None),
            ("other", None),
            ("away: 9", None),
            ("away: 11", {"repeated": 5}),
        ]

    def test_a_cause_may_be_named(self, written: Written) -> None:
        for at in range(3):
            logger.warning(f"exporter {at}", extra={"cause": "exporter"})
        assert len(written.lines) == 1

    def test_information_is_never_held_back(self, written: Written) -> None:
        for _ in range(3):
            logger.info("again")
        assert len(written.lines) == 3

    def test_causes_do_not_pile_up(self, written: Written) -> None:
        for at in range(1500):
            logger.warning(f"number {at}")
        logger.warning("number 0")
        logger.warning("number 1499")
        assert len(written.lines) == 1501
