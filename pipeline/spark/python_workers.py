"""The Python that Spark's workers run on: whether it has this package.

Spark starts workers with the `PYSPARK_PYTHON` of its driver, else with the first `python3` on the
path. Where that lacks the package, each task fails with a bare ModuleNotFoundError out of the JVM.
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
"""What every worker imports."""
_TIMEOUT_SECONDS: Final = 60.0


def check_python_workers(spark: "SparkSession", *, on_driver: bool = False) -> None:
    """Refuse a session whose workers cannot import what a read needs.

    Checked is the Python of this machine: that of a local master's workers and, with `on_driver`,
    of the process in which Spark plans a source in Python, whatever the master. Costs a start of
    Python where it is another than this process runs on, once. Where files are sent to workers, or
    the session is one of Spark Connect, nothing is known, and nothing is checked.

    Raises:
        ConfigurationError: names that Python, what it lacks, and what to set.
    """
    try:
        context = spark.sparkContext
    except Exception:  # noqa: BLE001 -- Spark Connect has none; each version raises another error
        return
    if not (on_driver or str(context.master).startswith("local")) or _sends_files(context):
        return
    program = str(context.pythonExec)
    found = shutil.which(program)
    if found is not None and os.path.abspath(found) == sys.executable:  # noqa: PTH100 -- links stay
        return
    problem = _problem(found) if found is not None else "there is no such program"
    if problem is not None:
        raise ConfigurationError(
            f"Spark's workers run on {found or program}, which cannot import {_NEEDED}: {problem}. "
            "Set PYSPARK_PYTHON to a Python that has sidetier[spark] before the session starts, as "
            f"in os.environ['PYSPARK_PYTHON'] = sys.executable ({sys.executable} here), or "
            "spark.pyspark.python with spark-submit"
        )


def _sends_files(context: "SparkContext") -> bool:
    """Whether the package may come with the job: `--py-files`, `--archives`, `addPyFile`."""
    conf = context.getConf()
    names = ("spark.submit.pyFiles", "spark.archives", "spark.yarn.dist.archives")
    return any(conf.get(name, "") for name in names) or bool(list(context.listFiles))


@lru_cache(maxsize=8)
def _problem(program: str) -> str | None:
    """Why a Python cannot import what is needed; None where it can."""
    try:
        done = subprocess.run(  # noqa: S603 -- what Spark itself starts
            [program, "-c", f"import {_NEEDED}"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
