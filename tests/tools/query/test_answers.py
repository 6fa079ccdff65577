"""Answers that are late, damaged, refused, or from another kind of server."""

from __future__ import annotations

import gzip
import io
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.core.otlp.json_codec import traces_to_json
from cirron_otel.core.otlp.wire import encode_varint
from cirron_otel.errors import CirronOtelError, EndpointError, InputError
from cirron_otel.tools.query import client
from cirron_otel.tools.query.address import HEADERS_VARIABLE, parse_address
from cirron_otel.tools.query.fetch import fetch
from cirron_otel.tools.query.fetched import FetchReport
from tests.tools.conftest import Run, one_line

from .serving import Said, Served, serving

TRACE = "ab" * 16
SECRETS = {HEADERS_VARIABLE: "authorization=Bearer%20s3cret-token,x-key=an0ther"}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses between attempts."""
    monkeypatch.setattr(client, "_FIRST_PAUSE_S", 0.001)


def trace(name: str = "a span", trace_id: str = TRACE) -> TracesData:
    traces = TracesData()
    span = traces.resource_spans.add().scope_spans.add().spans.add(name=name)
    span.trace_id, span.span_id = bytes.fromhex(trace_id), b"12345678"
    span.start_time_unix_nano, span.end_time_unix_nano = 10**18, 10**18 + 5
    return traces


def as_json(traces: TracesData) -> bytes:
    return b'{"result":' + traces_to_json(traces) + b"}"


def as_proto(traces: TracesData, rest: bytes = b"") -> bytes:
    data = traces.SerializeToString()
    return b"\x0a" + encode_varint(len(data)) + data + rest


def ask(server: str, backend: str, what: str = f"trace={TRACE}") -> tuple[FetchReport, bytes]:
    out = io.BytesIO()
    return fetch(parse_address(f"{backend}:{server}?{what}", SECRETS), out), out.getvalue()


def failing(error: type[CirronOtelError], said: Said, backend: str = "jaeger") -> str:
    """Return the message of the error that an answer causes; check that it contains no secret."""
    with serving(lambda *_: said) as served, pytest.raises(error) as found:
        ask(served.url, backend)
    assert "s3cret" not in str(found.value)
    assert "an0ther" not in str(found.value)
    return str(found.value)


def test_request_has_credentials_extra_headers_and_tenant() -> None:
    with serving(lambda *_: Said(body=as_json(trace()))) as served:
        fetched, data = ask(served.url, "jaeger", f"trace={TRACE}&tenant=blue")
    assert fetched.traces == 1
    assert trace().SerializeToString() in data
    path, headers = served.asked[0]
    assert path == f"/api/v3/traces/{TRACE}?raw_traces=true"
    assert headers["authorization"] == "Bearer s3cret-token"
    assert headers["x-key"] == "an0ther"
    assert headers["x-scope-orgid"] == "blue"


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("backend", ["jaeger", "tempo"])
def test_refused(status: int, backend: str) -> None:
    body = b"token s3cret-token and an0ther are\nnot known"
    message = failing(EndpointError, Said(status, body, "text/plain"), backend)
    assert f"answered {status}: token *** and *** are not known" in message
    assert HEADERS_VARIABLE in message


def test_no_tenant() -> None:
    message = failing(EndpointError, Said(401, b"no org id", "text/plain"), "tempo")
    assert "tenant=" in message


def test_web_pages_redirects_and_other_servers() -> None:
    page = Said(200, b"<html><body>Jaeger UI</body></html>", "text/html; charset=utf-8")
    assert "web page" in failing(EndpointError, page)
    assert "web page" in failing(EndpointError, page, "tempo")
    moved = Said(302, b"", "text/plain", {"location": "https://login.example/s3cret-token"})
    assert "redirect" in failing(EndpointError, moved)
    elsewhere = Said(404, b"404 page not found\n", "text/plain")
    assert "answered 404" in failing(EndpointError, elsewhere)
    assert "answered 404" in failing(EndpointError, elsewhere, "tempo")


def test_refused_connection_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(EndpointError, match="does not answer: Connection refused"):
            ask(url, "jaeger")


def test_who_is_busy_is_asked_again() -> None:
    said = [Said(503, b"busy", "text/plain", {"retry-after": "0"}), Said(429, b"", "text/plain")]
    with serving(lambda _, n: said[n] if n < 2 else Said(body=as_json(trace()))) as served:
        fetched, _ = ask(served.url, "jaeger")
    assert (fetched.traces, len(served.asked)) == (1, 3)


def test_who_stays_busy_is_given_up() -> None:
    message = failing(EndpointError, Said(503, b"busy", "text/plain", {"retry-after": "0"}))
    assert "does not answer: 503: busy" in message


@pytest.mark.parametrize("backend", ["jaeger", "tempo"])
def test_answers_that_break_off(backend: str) -> None:
    body = as_json(trace()) if backend == "jaeger" else as_proto(trace())
    kind = "application/json" if backend == "jaeger" else "application/protobuf"
    whole = len(body)
    message = failing(EndpointError, Said(200, body[:-20], kind, promised=whole), backend)
    assert "breaks off" in message
    # If a proxy has adjusted the content length, the content itself shows that it is cut off.
    message = failing(InputError, Said(200, body[:-20], kind), backend)
    assert "cut off" in message


def test_an_answer_that_repeats_a_key_is_refused_with_its_path() -> None:
    body = as_json(trace()).replace(b'"name"', b'"name":"another","name"')
    message = failing(InputError, Said(body=body))
    assert "result.resourceSpans[0].scopeSpans[0].spans[0].name: the key occurs twice" in message


def test_gzip_is_decoded_and_damaged_gzip_is_reported() -> None:
    packed = gzip.compress(as_json(trace()))
    coding = {"content-encoding": "gzip"}
    with serving(lambda *_: Said(body=packed, headers=coding)) as served:
        assert ask(served.url, "jaeger")[0].traces == 1
    damaged = packed[:12] + bytes(20) + packed[32:]
    assert "damaged" in failing(EndpointError, Said(body=damaged, headers=coding))


def test_answer_limit_applies_to_the_decompressed_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 2**20)
    bomb = Said(body=gzip.compress(bytes(50 * 2**20)), headers={"content-encoding": "gzip"})
    assert "more than 1 MiB" in failing(EndpointError, bomb)


def test_answers_have_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_SECONDS", -1.0)
    assert "took more than" in failing(EndpointError, Said(body=as_json(trace())))


@pytest.mark.parametrize(
    "body",
    [b"[]", b'{"result":[]}', b'{"resourceSpans":{}}', b"nonsense", b"[" * 100_000, b'{"a":1}{'],
)
def test_invalid_otlp_json_is_an_input_error(body: bytes) -> None:
    assert "jaeger at http://127.0.0.1" in failing(InputError, Said(body=body))


def test_a_stream_of_results_is_one_trace() -> None:
    body = as_json(trace("one")) + b"\n" + as_json(trace("two")) + b"\n"
    with serving(lambda *_: Said(body=body)) as served:
        _, data = ask(served.url, "jaeger")
    assert b"one" in data
    assert b"two" in data


def test_an_error_in_the_midst_of_a_stream() -> None:
    error = b'{"error":{"httpCode":500,"message":"storage s3cret-token is gone"}}'
    body = as_json(trace("one")) + b"\n" + error
    with serving(lambda *_: Said(body=body)) as served, pytest.raises(EndpointError, match="gone"):
        ask(served.url, "jaeger")


def test_spans_of_another_trace() -> None:
    other = trace(trace_id="cd" * 16)
    assert "another trace" in failing(InputError, Said(body=as_json(other)))
    said = Said(body=as_proto(other), kind="application/protobuf")
    assert "another trace" in failing(InputError, said, "tempo")


def test_partial_trace_from_tempo_is_reported() -> None:
    body = as_proto(trace(), b"\x18\x01\x22\x09too large")
    said = Said(body=body, kind="application/protobuf")
    with serving(lambda *_: said) as served:
        fetched, data = ask(served.url, "tempo")
    assert fetched.missing == [f"trace {TRACE}: Tempo gave a part only: too large"]
    assert trace().SerializeToString() in data


def test_tempo_that_answers_json() -> None:
    assert "protobuf was asked for" in failing(InputError, Said(body=b"{}"), "tempo")


def test_text_that_was_cut_within_a_letter() -> None:
    traces = trace()
    pair = traces.resource_spans[0].scope_spans[0].spans[0].attributes.add(key="long")
    pair.value.string_value = "x" * 2046 + "é"
    body = as_proto(traces).replace("é".encode(), b"\xc3\xc3")
    said = Said(body=body, kind="application/protobuf")
    with serving(lambda *_: said) as served:
        fetched, data = ask(served.url, "tempo")
    assert b"x" * 2046 in data
    assert b"x\xc3" not in data
    assert "1 attribute is as long as Tempo cuts them" in fetched.missing[0]


def test_missing_traces_are_reported() -> None:
    error = b'{"error":{"httpCode":404,"message":"No traces found"}}'
    with serving(lambda *_: Said(404, error, "text/plain")) as served:
        with pytest.raises(InputError, match="none of the traces that were asked for"):
            ask(served.url, "jaeger")
        with pytest.raises(InputError, match="no trace of service shop in the time"):
            ask(served.url, "jaeger", "service=shop")
    one = f"trace={TRACE}&trace={'cd' * 16}"
    with serving(
        lambda path, _: Said(body=as_json(trace())) if TRACE in path else Said(404, error)
    ) as served:
        fetched, _ = ask(served.url, "jaeger", one)
    assert fetched.missing == [f"trace {'cd' * 16}, which was asked for, is not there"]


def _search(ids: list[str], most: int) -> Callable[[str, int], Said]:
    """Return a Tempo that finds at most `most` traces per search; the nth starts at second n."""

    def answer(path: str, _: int) -> Said:
        from urllib.parse import parse_qs, urlsplit

        url = urlsplit(path)
        if url.path != "/api/search":
            found = trace(trace_id=url.path.rpartition("/")[2])
            return Said(body=as_proto(found), kind="application/protobuf")
        asked = {key: values[0] for key, values in parse_qs(url.query).items()}
        assert int(asked["end"]) - int(asked["start"]) <= 7 * 86400
        hits = [i for n, i in enumerate(ids) if int(asked["start"]) <= n <= int(asked["end"])]
        document: dict[str, Any] = {"traces": [{"traceID": i.lstrip("0")} for i in hits[:most]]}
        return Said(body=json.dumps(document).encode())

    return answer


def test_a_search_that_finds_more_than_it_gives_is_cut_in_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from cirron_otel.tools.query import backend, tempo

    monkeypatch.setattr(backend, "SEARCH_TRACES", 5)
    monkeypatch.setattr(tempo, "SEARCH_TRACES", 5)
    ids = [f"{n:032x}" for n in range(1, 38)]
    time = "start=1970-01-01&end=1970-01-10"
    with serving(_search(ids, 5)) as served:
        fetched, data = ask(served.url, "tempo", f"service=s&{time}")
        assert fetched.traces == len(ids)
        assert all(bytes.fromhex(each) in data for each in ids)
        fetched, _ = ask(served.url, "tempo", f"service=s&limit=3&{time}")
        assert fetched.traces == 3
    assert fetched.missing == [
        "more than 3 traces of the service match: raise limit, or narrow start and end"
    ]


def test_exit_codes_of_the_command(run: Run, tmp_path: Path) -> None:
    def code(served: Served, what: str = f"trace={TRACE}", *more: str) -> tuple[str, ...]:
        return ("convert", f"jaeger:{served.url}?{what}", str(tmp_path / "out"), *more)

    with serving(lambda *_: Said(403, b"s3cret-token", "text/plain")) as served:
        line = one_line(run(*code(served), env=SECRETS), 5)
        assert "s3cret" not in line
        one_line(run(*code(served, "session=")), 2)
        line = one_line(run(*code(served, f"trace={TRACE}", "--from", "otlp-json")), 2)
        assert "--from" in line
        line = one_line(run("export", f"jaeger:{served.url}?trace={TRACE}", "--follow"), 2)
        assert "--follow needs a spool" in line
        assert "names no http" in one_line(run("report", "jaeger:localhost?session=x"), 2)
    with serving(lambda *_: Said(body=b"nonsense")) as served:
        one_line(run(*code(served)), 3)
    assert not (tmp_path / "out").exists()
