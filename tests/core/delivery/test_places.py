"""Lanes start requests while others have one in flight, within the limits."""

from __future__ import annotations

from cirron_otel.core.delivery.places import Places


def is_free(places: Places, lane: str, **about: bool) -> bool:
    return places.is_free(lane, **({"is_failing": False, "is_target_closed": False} | about))


def started(places: Places, *lanes: str, is_failing: bool = False) -> None:
    for lane in lanes:
        assert is_free(places, lane, is_failing=is_failing)
        places.occupy(lane, is_failing=is_failing)


def test_each_lane_has_one_request_and_all_have_a_maximum() -> None:
    places = Places(3)
    started(places, "a", "b")
    assert not is_free(places, "a")
    started(places, "c")
    assert not is_free(places, "d")
    places.leave("a", 0.1)
    assert is_free(places, "a")
    assert is_free(places, "d")


def test_failing_and_slow_lanes_share_half_of_the_places() -> None:
    places = Places(4)
    started(places, "slow")
    places.leave("slow", 5.0)
    started(places, "failing", is_failing=True)
    started(places, "slow")
    assert not is_free(places, "other", is_failing=True)
    started(places, "good", "fine")
    assert not is_free(places, "late")
    places.leave("slow", 0.1)
    started(places, "late")
    places.leave("failing", 5.0)
    assert is_free(places, "slow")


def test_one_place_is_for_any_lane() -> None:
    places = Places(1)
    started(places, "failing", is_failing=True)
    assert not is_free(places, "good")


def test_a_closed_target_is_probed_by_two_requests() -> None:
    places = Places(8)
    for lane in ("a", "b"):
        assert is_free(places, lane, is_failing=True, is_target_closed=True)
        places.occupy(lane, is_failing=True)
    assert not is_free(places, "c", is_failing=True, is_target_closed=True)
    assert is_free(places, "c")
