"""The directory where an export's Spark starts, and the Python of its workers."""

import os
import sys
from pathlib import Path

import pytest

from sidetier.pipeline.spark.session import check_directory, use_this_python
from sidetier.segments.errors import ConfigurationError


@pytest.mark.parametrize(
    ("master", "named", "taken"),
    [
        ("local[2]", None, sys.executable),
        ("local-cluster[2,1,1024]", None, sys.executable),
        ("local[2]", "/opt/python", "/opt/python"),
        ("spark://master:7077", None, None),  # the Python on this machine does not exist there
    ],
)
def test_local_workers_use_this_python_unless_another_is_configured(
    monkeypatch: pytest.MonkeyPatch, master: str, named: str | None, taken: str | None
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", named or "")
    if named is None:
        monkeypatch.delenv("PYSPARK_PYTHON")
    use_this_python(master)
    assert os.environ.get("PYSPARK_PYTHON") == taken
    monkeypatch.setenv("PYSPARK_PYTHON", "")  # so that it is put back whatever was set


def test_unwritable_directory_is_reported_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`access` simulates a read-only root, because the user of the tests may write anywhere."""
    monkeypatch.setattr(os, "access", lambda path, _: path != Path("/app"))
    check_directory(Path("/app"), "4.0.1")
    check_directory(Path("/home"), "4.0.0")
    with pytest.raises(ConfigurationError, match=r"cannot write to /app: start it elsewhere"):
        check_directory(Path("/app"), "4.0.0")
