"""Requests of several tenants are in flight at the same time, of one tenant one after the other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.kit.spools.deliveries import until

from .endpoints import Endpoint, grpc_endpoint, http_endpoint
from .test_isolation import Spool

PROTOCOLS = ("http/protobuf", "grpc", "cirron")


def accepting(protocol: str) -> AbstractContextManager[Endpoint]:
    serve = grpc_endpoint if protocol == "grpc" else http_endpoint
    return serve(lambda _tenant, _name: 200)


@contextlib.contextmanager
def waiting(endpoint: Endpoint, *tenants: str) -> Iterator[threading.Event]:
    """The endpoint does not answer these tenants until the event is set."""
    answers = threading.Event()
    endpoint.before = lambda tenant: tenant in tenants and answers.wait(120)
    try:
        yield answers
    finally:
        answers.set()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_tenant_without_an_answer_does_not_delay_others(tmp_path: Path, protocol: str) -> None:
    spool = Spool(tmp_path)
    spool.timeout_s = 60.0
    for number in range(20):
        spool.put("a", f"a{number}")
    with (
        accepting(protocol) as endpoint,
        waiting(endpoint, "a") as answers,
        spool.followed(endpoint, protocol, passes=True),
    ):
        for number in range(3):
            spool.put("b", f"b{number}")
            until(lambda: f"b{number}" in endpoint.names())  # noqa: B023
        assert {tenant for tenant, _ in endpoint.accepted} == {"b"}
        answers.set()
        until(lambda: len(endpoint.names()) == 23)
    assert endpoint.most_of_a_tenant == 1
    in_order = [name for tenant, name in endpoint.accepted if tenant == "a"]
    assert in_order == [f"a{number}" for number in range(20)]
    if protocol != "cirron":
        assert endpoint.requests < 23  # batches of a tenant share a request


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_requests_in_flight_have_a_limit(tmp_path: Path, protocol: str) -> None:
    tenants = [f"t{number}" for number in range(12)]
    spool = Spool(tmp_path)
    spool.timeout_s = 60.0
    for tenant in tenants:
        spool.put(tenant, tenant)
    with (
        accepting(protocol) as endpoint,
        waiting(endpoint, *tenants) as answers,
        spool.followed(endpoint, protocol, passes=True),
    ):
        # The gRPC server of these tests has two threads.
        until(lambda: endpoint.most_in_flight == (2 if protocol == "grpc" else 8))
        answers.set()
        until(lambda: len(endpoint.names()) == 12)
    assert endpoint.most_in_flight <= 8


def test_tenants_without_an_answer_leave_places_to_others(tmp_path: Path) -> None:
    """Once they are known, they occupy half of the places at most."""
    silent = [f"silent{number}" for number in range(10)]
    spool = Spool(tmp_path)
    spool.timeout_s = 0.5
    for tenant in silent:
        for number in range(2):
            spool.put(tenant, f"{tenant}-{number}")
    with (
        accepting("http/protobuf") as endpoint,
        waiting(endpoint, *silent),
        spool.followed(endpoint, "http/protobuf", passes=True),
    ):
        for number in range(5):
            spool.put("good", f"good{number}")
            until(lambda: f"good{number}" in endpoint.names())  # noqa: B023
    assert {tenant for tenant, _ in endpoint.accepted[:5]} == {"good"}


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_request_that_outlasts_the_end_of_its_exporter_is_not_repeated(
    tmp_path: Path, protocol: str
) -> None:
    """A changed exporter, or the last attempt at a stop, waits for the request in flight."""
    spool = Spool(tmp_path)
    spool.timeout_s = 60.0
    spool.put("a", "late")
    with accepting(protocol) as endpoint, waiting(endpoint, "a") as answers:
        spool.end_s = 3.0
        with spool.followed(endpoint, protocol, passes=True):
            until(lambda: bool(endpoint.in_flight["a"]))
        spool.end_s = 20.0
        with spool.followed(endpoint, protocol, passes=True):
            spool.put("b", "good")
            assert endpoint.in_flight["a"] == 1
            answers.set()
            until(lambda: sorted(endpoint.names()) == ["good", "late"])
    assert endpoint.requests == 2


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_exporter_that_ends_waits_for_an_answer_until_the_timeout_of_the_request(
    tmp_path: Path, protocol: str
) -> None:
    """Then another exporter sends its batch again."""
    spool = Spool(tmp_path)
    spool.timeout_s = 2.0
    spool.put("a", "late")
    spool.put("b", "good")
    with accepting(protocol) as endpoint, waiting(endpoint, "a"):
        with spool.followed(endpoint, protocol, passes=True):
            until(lambda: endpoint.names() == ["good"] and endpoint.in_flight["a"])
        assert endpoint.names() == ["good"]
        endpoint.before = lambda _: None
        with spool.followed(endpoint, protocol, passes=True):
            until(lambda: endpoint.names() == ["good", "late"])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_batches_whose_tenant_becomes_unknown_do_not_delay_later_ones(
    tmp_path: Path, protocol: str
) -> None:
    """The state of the tenants is damaged while batches wait for the endpoint."""
    is_up = threading.Event()
    serve, down = (grpc_endpoint, 14) if protocol == "grpc" else (http_endpoint, 503)
    spool = Spool(tmp_path)
    early = [spool.put("a", f"early{number}") for number in range(20)]
    spool.end_s = 1.0  # a delivery that ends tries the batches that remain
    with (
        serve(lambda _tenant, _name: 200 if is_up.is_set() else down) as endpoint,
        spool.followed(endpoint, protocol, passes=True),
    ):
        until(lambda: endpoint.requests >= 3)
        spool.held.update(early)
        is_up.set()
        for number in range(3):
            spool.put("a", f"late{number}")
            until(lambda: f"late{number}" in endpoint.names())  # noqa: B023


def test_groups_of_all_tenants_follow_the_smallest_learned_limit(tmp_path: Path) -> None:
    """A group that had to be split would repeat its accepted parts after a failure."""
    spool, sizes = Spool(tmp_path), list[int]()
    with http_endpoint(lambda _tenant, _name: 200) as endpoint:
        answer = endpoint.answer

        def limited(tenant: str, names: list[str]) -> int | None:
            sizes.append(len(names))
            return 413 if len(names) > 4 else answer(tenant, names)

        endpoint.answer = limited  # type: ignore[method-assign]
        for number in range(20):
            spool.put("a", f"a{number}".ljust(4_000, "x"))
        with spool.followed(endpoint, "http/protobuf", passes=True):
            until(lambda: len(endpoint.names()) == 20)
            sizes.clear()
            names = [spool.write("b", f"b{number}".ljust(4_000, "x")) for number in range(20)]
            spool.announce(names)
            until(lambda: len(endpoint.names()) == 40)
    assert max(sizes) <= 8
