"""No module imports itself through others, not even for its types or inside a function."""

from graphlib import TopologicalSorter

import grimp

PUBLIC = "sidetier"
"""The public interface, which imports lazily."""


def test_imports_have_no_circle() -> None:
    graph = grimp.build_graph("sidetier", cache_dir=None)
    TopologicalSorter(
        {
            module: graph.find_modules_directly_imported_by(module) - {PUBLIC}
            for module in graph.modules - {PUBLIC}
        }
    ).prepare()  # CycleError names the modules
