"""The imports of the package form no cycle, those for types and in functions included."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp

PACKAGE = "cirron_otel"
GROUPS = {
    "torch's tracker": {
        f"{PACKAGE}.instrumentation.torch.{name}"
        for name in (
            "ahead", "bare", "beside", "deciding", "left_open", "one_pass", "passes", "recovery",
            "steps", "tails", "tracker",
        )
    },
}  # fmt: skip
"""Modules that still import each other. A group shrinks, and no other one is added."""


def test_imports_form_no_cycle() -> None:
    graph = grimp.build_graph(PACKAGE, include_external_packages=False, cache_dir=None)
    name_of = {module: group for group, modules in GROUPS.items() for module in modules}
    assert name_of.keys() <= graph.modules
    edges: dict[str, set[str]] = {}
    for module in graph.modules:
        importer = name_of.get(module, module)
        imported = {
            name_of.get(each, each)
            for each in graph.find_modules_directly_imported_by(module)
            if each != PACKAGE
        }
        edges.setdefault(importer, set()).update(imported - {importer})
    TopologicalSorter(edges).prepare()  # raises CycleError, which names the modules


def test_each_group_is_still_one_cycle() -> None:
    """A module that is in no cycle any more leaves its group."""
    graph = grimp.build_graph(PACKAGE, include_external_packages=False, cache_dir=None)
    for modules in GROUPS.values():
        for module in modules:
            reachable, pending = set(), [module]
            while pending:
                for each in graph.find_modules_directly_imported_by(pending.pop()) & modules:
                    if each not in reachable:
                        reachable.add(each)
                        pending.append(each)
            assert module in reachable, f"{module} is in no cycle"
