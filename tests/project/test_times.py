"""The choice of the tests that `make check` leaves out."""

from __future__ import annotations

from tests.kit.times import (
    LEFT_OUT,
    ROOT,
    choose,
    function_of,
    longest_first,
    slow,
)


def row(seconds: float, name: str, shared: str = "", left_out: str = "") -> list[str]:
    return [str(seconds), name, shared, left_out]


def test_the_slowest_are_left_out_until_the_rest_fits() -> None:
    rows = [row(1, "t.py::a"), row(2, "t.py::b[x]"), row(4, "t.py::b[y]"), row(5, "t.py::c@group")]
    assert choose(rows, 12) == {}
    assert choose(rows, 7) == {"t.py::c": 5}
    assert choose(rows, 6) == {"t.py::b": 3, "t.py::c": 5}


def test_a_shared_fixture_counts_for_each_test_that_uses_it() -> None:
    rows = [row(8, "fixture t.py::server"), row(1, "t.py::a", "t.py::server"),
            row(1, "t.py::b", "t.py::server;::other"), row(2, "t.py::c")]  # fmt: skip
    assert choose(rows, 2) == {"t.py::a": 5, "t.py::b": 5}


def test_excluded_tests_use_no_time_budget() -> None:
    assert choose([row(9, "t.py::a", "", "out"), row(1, "t.py::b")], 1) == {}


def test_the_list_names_tests_that_exist() -> None:
    for name in slow():
        path, _, function = name.partition("::")
        assert f"def {function.rpartition('::')[2]}(" in (ROOT / path).read_text(), name
        assert function_of(name) == name


def test_make_check_leaves_out_by_marker() -> None:
    left_out = " and ".join(f"not {name}" for name in (*LEFT_OUT, "slow"))
    assert f'-m "{left_out}"' in (ROOT / "Makefile").read_text()


def test_long_tests_and_long_groups_start_first_and_the_others_keep_their_order() -> None:
    groups = ["a", "few", "b", "many", "c", "many", "long", "many"]
    seconds = [0.1, 2.9, 0.3, 2.0, 0.2, 2.0, 5.0, 2.0]
    ordered = [groups[at] for at in longest_first(groups, seconds)]
    assert ordered == ["many", "many", "many", "long", "a", "few", "b", "c"]
