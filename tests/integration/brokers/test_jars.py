"""Jars are fetched by Maven if it is installed, and by Ivy otherwise, with their dependencies."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sidetier.brokers.errors import FetchError
from sidetier.brokers.jars import Artifact, Distribution, fetch_with_ivy, fetch_with_maven

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LOG_BINDER = Distribution("log-binder", (Artifact("org.slf4j", "slf4j-reload4j", "1.7.36"),))
BUNDLE = Distribution("bundle", (Artifact("org.xerial.snappy", "snappy-java", "1.1.10.5"),))
ALONE = Distribution("alone", (Artifact("org.slf4j", "slf4j-reload4j", "1.7.36", alone=True),))
ABSENT = Distribution("absent", (Artifact("org.slf4j", "slf4j-reload4j", "0.0.0-absent"),))

Fetch = Callable[[Distribution, Path], None]
fetchers = pytest.mark.parametrize(
    "fetch", [fetch_with_ivy, fetch_with_maven] if shutil.which("mvn") else [fetch_with_ivy]
)


@fetchers
def test_artifact_is_fetched_with_exactly_its_dependencies(fetch: Fetch, tmp_path: Path) -> None:
    fetch(LOG_BINDER, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "reload4j-1.2.19.jar",
        "slf4j-api-1.7.36.jar",
        "slf4j-reload4j-1.7.36.jar",
    ]


@fetchers
def test_error_for_a_missing_artifact_names_it(fetch: Fetch, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="slf4j-reload4j"):
        fetch(ABSENT, tmp_path)


@fetchers
def test_artifact_of_the_type_bundle_is_fetched(fetch: Fetch, tmp_path: Path) -> None:
    fetch(BUNDLE, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["snappy-java-1.1.10.5.jar"]


@fetchers
def test_artifact_that_runs_inside_another_program_is_fetched_alone(
    fetch: Fetch, tmp_path: Path
) -> None:
    fetch(ALONE, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["slf4j-reload4j-1.7.36.jar"]
