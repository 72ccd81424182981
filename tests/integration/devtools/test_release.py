"""Files of a release, built from the last commit. `make release-check` also builds the SBOMs."""

import sys
from pathlib import Path

import pytest

from devtools.release import artifacts, check
from devtools.sandbox.chart_tools import helm

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
HATCHLING = Path(sys.executable).with_name("hatchling")


def test_two_builds_of_a_commit_are_equal_and_complete(tmp_path: Path) -> None:
    builds = [tmp_path / "first", tmp_path / "second"]
    for directory in builds:
        directory.mkdir()
        source = artifacts.export(ROOT, tmp_path / f"{directory.name}-source" / "tree")
        artifacts.build_distributions(source, HATCHLING, directory)
        artifacts.package_chart(source, helm(), directory)
        artifacts.write_checksums(directory)
    first, second = builds
    assert check.differences(first, second) == []
    assert list(check.problems(first, source.version)) == []
    names = [f"sidetier-{source.version}{end}" for end in ("-py3-none-any.whl", ".tar.gz", ".tgz")]
    assert sorted(path.name for path in first.iterdir()) == ["SHA256SUMS", *names]

    wheel = artifacts.build_from_sdist(source, first / names[1], HATCHLING, tmp_path / "third")
    assert check.differing_entries(first / names[0], wheel) == []
