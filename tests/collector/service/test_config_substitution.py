from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirron_otel.collector.service.substitution import (
    Expander,
    FromVariables,
    SubstitutionError,
    expand,
)

ENVIRON = {"A": "one", "B": "two", "EMPTY": "", "DOLLARS": "$$ ${A}", "_x9": "nine"}


class TestExpand:
    # Source: the configuration page of the OpenTelemetry Collector, "Environment variables".
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("", ""),
            ("plain", "plain"),
            ("${env:A}", "one"),
            ("${A}", "one"),
            ("${_x9}", "nine"),
            ("x${A}y${env:B}z", "xoneytwoz"),
            ("${A:-d}", "one"),
            ("${env:A:-d}", "one"),
            ("${C:-d}", "d"),
            ("${env:C:-d}", "d"),
            ("${C:-}", ""),
            ("${EMPTY:-d}", ""),
            ("${C:-a:-b}", "a:-b"),
            ("${C:-http://h:1/p}", "http://h:1/p"),
            ("${C:-${A}}", "one"),
            ("${C:-x${D:-${B}}y}", "xtwoy"),
            ("${A:-${C}}", "one"),
            ("$$", "$"),
            ("$$$$", "$$"),
            ("$${A}", "${A}"),
            ("$$${A}", "$one"),
            ("$A", "$A"),
            ("$", "$"),
            ("a$", "a$"),
            ("$ {A}", "$ {A}"),
            ("}{", "}{"),
            ("${C:-$$}", "$"),
            ("${DOLLARS}", "$$ ${A}"),
        ],
    )
    def test_as_the_opentelemetry_collector_does(self, text: str, expected: str) -> None:
        assert expand(text, ENVIRON) == expected

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("${C}", "the variable C, which is not set"),
            ("${env:C}", "the variable C, which is not set"),
            ("${C:-${D}}", "the variable D"),
            ("${A", "expected ${A}"),
            ("${C:-x", "without its }"),
            ("${", "expected letters"),
            ("${}", "expected letters"),
            ("${env:}", "expected letters"),
            ("${1A}", "'1A'"),
            ("${A B}", "'A B'"),
            ("${A:x}", "only variables"),
            ("${file:/etc/passwd}", "'file'"),
            ("${A:-" * 40 + "}" * 40, "deep"),
        ],
    )
    def test_unresolvable_expression_reports_the_reason(self, text: str, words: str) -> None:
        with pytest.raises(SubstitutionError, match=r"^(has|names)") as caught:
            expand(text, ENVIRON)
        assert words in str(caught.value)

    def test_text_expanded_from_variables_is_marked_as_such(self) -> None:
        assert isinstance(expand("x${A}", ENVIRON), FromVariables)
        assert isinstance(expand("${C:-d}", ENVIRON), FromVariables)
        assert not isinstance(expand("$$x", ENVIRON), FromVariables)

    @given(st.text(st.sampled_from("${}:-AB envfile\n€\0"), max_size=60))
    def test_any_text_is_expanded_or_refused(self, text: str) -> None:
        try:
            found = expand(text, ENVIRON)
        except SubstitutionError:
            assert "${" in text
        else:
            assert "$" in text or found == text

    @given(st.text(max_size=50))
    def test_an_escaped_text_is_itself(self, text: str) -> None:
        assert expand(text.replace("$", "$$"), {}) == text

    @given(st.data())
    def test_generated_expressions_expand_to_the_expected_text(self, data: st.DataObject) -> None:
        source, expected = data.draw(built(3))
        assert expand(source, ENVIRON) == expected


Built = tuple[str, str]


def built(depth: int) -> st.SearchStrategy[Built]:
    """A text of literals and references, and what it stands for."""
    literal = st.text(st.sampled_from("ab :/-{€"), max_size=4).map(lambda text: (text, text))
    parts = [literal, st.just(("$$", "$")), st.just(("${env:A}", "one")), st.just(("${B}", "two"))]
    if depth:
        inner = built(depth - 1)
        parts.append(inner.map(lambda each: (f"${{NOT_SET:-{each[0]}}}", each[1])))
        parts.append(inner.map(lambda each: (f"${{env:EMPTY:-{each[0]}}}", "")))
    return st.lists(st.one_of(parts), max_size=4).map(
        lambda each: ("".join(one for one, _ in each), "".join(other for _, other in each))
    )


class TestTree:
    def test_values_are_expanded_and_keys_are_not(self) -> None:
        tree = {"${A}": ["${A}", 1, None, {"x": "${B}"}]}
        assert Expander(partial(expand, environ=ENVIRON)).tree(tree) == {
            "${A}": ["one", 1, None, {"x": "two"}]
        }

    def test_problems_have_their_paths(self) -> None:
        expander = Expander(partial(expand, environ=ENVIRON))
        expander.tree({"a": {"b": ["", "${C}"]}, "d": "${"})
        assert [path for path, _ in expander.problems] == ["a.b[1]", "d"]

    def test_a_tree_that_is_small_to_hold_and_large_to_walk(self) -> None:
        tree: list[object] = ["${A}"]
        for _ in range(80):
            tree = [tree, tree]
        found = Expander(partial(expand, environ=ENVIRON)).tree(tree)
        for _ in range(80):
            found = found[0]
        assert found == ["one"]

    def test_a_tree_that_holds_itself(self) -> None:
        tree: dict[str, object] = {}
        tree["a"] = [tree]
        expander = Expander(partial(expand, environ=ENVIRON))
        expander.tree(tree)
        assert expander.problems == [("a[0]", "contains itself")]
