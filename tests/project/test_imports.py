"""The package's imports form no cycle, not even with those for types and inside functions."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp

PACKAGE = "cirron_otel"


def test_imports_form_no_cycle() -> None:
    graph = grimp.build_graph(PACKAGE, include_external_packages=False, cache_dir=None)
    edges = {
        module: graph.find_modules_directly_imported_by(module) - {PACKAGE, module}
        for module in graph.modules
    }
    TopologicalSorter(edges).prepare()  # raises CycleError, which names the modules
