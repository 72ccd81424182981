"""The check of the Python of Spark's workers, with real Python programs."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from sidetier.pipeline.spark.python_workers import check_python_workers
from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Context:
    """The part of a SparkContext that the check reads."""

    pythonExec: str  # noqa: N815 -- PySpark's name
    master: str = "local[2]"
    listFiles: list[str] = field(default_factory=list)  # noqa: N815
    conf: dict[str, str] = field(default_factory=dict)

    def getConf(self) -> dict[str, str]:  # noqa: N802
        return self.conf


@dataclass
class Session:
    sparkContext: Context  # noqa: N815


def check(context: Context, *, on_driver: bool = False) -> None:
    check_python_workers(cast("SparkSession", Session(context)), on_driver=on_driver)


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """A Python without any of the packages that are installed here."""
    return program(tmp_path, "-I -S")


def program(directory: Path, options: str) -> str:
    path = directory / "python3"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {options} "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_the_python_of_this_process_is_not_started() -> None:
    check(Context(sys.executable))


def test_other_python_with_the_package_is_accepted(tmp_path: Path) -> None:
    check(Context(program(tmp_path, "")))


def test_a_python_without_the_package_is_named_with_the_setting(bare_python: str) -> None:
    with pytest.raises(ConfigurationError, match="PYSPARK_PYTHON") as met:
        check(Context(bare_python))
    assert bare_python in str(met.value)
    assert "No module named 'sidetier'" in str(met.value)
    assert sys.executable in str(met.value)


def test_missing_python_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no such program"):
        check(Context(str(tmp_path / "python3")))


def test_with_a_cluster_only_the_python_that_plans_sources_is_checked(
    bare_python: str,
) -> None:
    cluster = Context(bare_python, "spark://host:7077")
    check(cluster)
    with pytest.raises(ConfigurationError):
        check(cluster, on_driver=True)


@pytest.mark.parametrize(
    "sent",
    [{"listFiles": ["/a/sidetier.zip"]}, {"conf": {"spark.submit.pyFiles": "sidetier.zip"}}],
)
def test_files_that_are_sent_with_the_job_are_not_checked(
    bare_python: str, sent: dict[str, object]
) -> None:
    check(Context(bare_python, **sent))  # type: ignore[arg-type]


def test_spark_connect_has_no_context() -> None:
    check_python_workers(cast("SparkSession", object()))
