"""docs/trainers-conformance.md contains the current programs, and results for them."""

from __future__ import annotations

from .matrix import digest, every, stored
from .matrix_page import PAGE, page

AGAIN = "run `python -m tests.system.frameworks.matrix`"


def test_the_page_is_up_to_date() -> None:
    modules, content = every(), stored()
    programs = {
        f"{module}.{name}": digest(program)
        for module, members in modules.items()
        for name, program in members.items()
    }
    found = {key: result["digest"] for key, result in content["programs"].items()}
    assert found == programs, AGAIN
    assert PAGE.read_text() == page(modules, content), AGAIN
