"""No module imports itself through others, not even for its types or inside a function."""

from graphlib import TopologicalSorter

import grimp

PUBLIC = "sidetier"
"""The public interface, which imports lazily."""


KNOWN = {
    ("sidetier.cli.serve", "sidetier.cli.commands.serve"),
    ("sidetier.storage.s3_requests", "sidetier.storage.s3_boto3"),
}
"""Imports that close the circles that are left."""


def test_imports_have_no_circle() -> None:
    graph = grimp.build_graph("sidetier", cache_dir=None)
    for importer, imported in KNOWN:
        graph.remove_import(importer=importer, imported=imported)
    TopologicalSorter(
        {
            module: graph.find_modules_directly_imported_by(module) - {PUBLIC}
            for module in graph.modules - {PUBLIC}
        }
    ).prepare()  # CycleError names the modules
