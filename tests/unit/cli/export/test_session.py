"""Where an export's Spark starts, and on which Python its workers run."""

import os
import sys
from pathlib import Path

import pytest

from sidetier.cli.export.spark_session import check_directory, use_this_python
from sidetier.segments.errors import ConfigurationError


@pytest.mark.parametrize(
    ("master", "named", "taken"),
    [
        ("local[2]", None, sys.executable),
        ("local-cluster[2,1,1024]", None, sys.executable),
        ("local[2]", "/opt/python", "/opt/python"),
        ("spark://master:7077", None, None),  # what is here is not what is there
    ],
)
def test_workers_on_this_machine_run_on_this_python_unless_another_is_named(
    monkeypatch: pytest.MonkeyPatch, master: str, named: str | None, taken: str | None
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", named or "")
    if named is None:
        monkeypatch.delenv("PYSPARK_PYTHON")
    use_this_python(master)
    assert os.environ.get("PYSPARK_PYTHON") == taken
    monkeypatch.setenv("PYSPARK_PYTHON", "")  # so that it is put back whatever was set


def test_a_directory_that_spark_cannot_write_to_is_told_before_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`access` stands in for a read-only root: whoever runs the tests may write anywhere."""
    monkeypatch.setattr(os, "access", lambda path, _: path != Path("/app"))
    check_directory(Path("/app"), "4.0.1")
    check_directory(Path("/home"), "4.0.0")
    with pytest.raises(ConfigurationError, match=r"cannot write to /app: start it elsewhere"):
        check_directory(Path("/app"), "4.0.0")
