"""Check that the Python of Spark's workers has this package.

Spark starts workers with the driver's `PYSPARK_PYTHON`, or else with the first `python3` on the
path. If that Python does not have the package, each task fails with a bare ModuleNotFoundError from
the JVM.
"""

import os
import shutil
import subprocess
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from sidetier.segments.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_NEEDED: Final = "sidetier.pipeline.spark.tasks"
"""Module that every worker imports."""
_TIMEOUT_SECONDS: Final = 60.0


def check_python_workers(spark: "SparkSession", *, on_driver: bool = False) -> None:
    """Refuse a session whose workers cannot import the modules of a read.

    Checks the Python of this machine. Workers of a local master run on it. With `on_driver`, it is
    checked with any master, because Spark plans Python sources in a process on the driver's
    machine. If it is not the Python of this process, the check starts it once. Nothing is checked
    if files are sent to the workers, or with Spark Connect, because the workers' Python is unknown
    then.

    Args:
        spark: session.
        on_driver: whether Spark plans a Python source on the driver.

    Raises:
        ConfigurationError: names the Python, the missing module, and the setting to change.
    """
    try:
        context = spark.sparkContext
    except Exception:  # noqa: BLE001 -- Spark Connect has none; each version raises another error
        return
    if not (on_driver or str(context.master).startswith("local")) or _sends_files(context):
        return
    program = str(context.pythonExec)
    path = shutil.which(program)
    if path is not None and os.path.abspath(path) == sys.executable:  # noqa: PTH100 -- links stay
        return
    problem = _problem(path) if path is not None else "there is no such program"
    if problem is not None:
        raise ConfigurationError(
            f"Spark's workers run on {path or program}, which cannot import {_NEEDED}: {problem}. "
            "Set PYSPARK_PYTHON to a Python that has sidetier[spark] before the session starts, as "
            f"in os.environ['PYSPARK_PYTHON'] = sys.executable ({sys.executable} here), or "
            "spark.pyspark.python with spark-submit"
        )


def _sends_files(context: "SparkContext") -> bool:
    """Whether the job may bring the package: `--py-files`, `--archives`, `addPyFile`."""
    conf = context.getConf()
    names = ("spark.submit.pyFiles", "spark.archives", "spark.yarn.dist.archives")
    return any(conf.get(name, "") for name in names) or bool(list(context.listFiles))


@lru_cache(maxsize=8)
def _problem(program: str) -> str | None:
    """Return why a Python cannot import the needed module; None if it can."""
    try:
        finished = subprocess.run(  # noqa: S603 -- what Spark itself starts
            [program, "-c", f"import {_NEEDED}"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if finished.returncode == 0:
        return None
    return (finished.stderr.strip().splitlines() or [f"it ended with {finished.returncode}"])[-1]
