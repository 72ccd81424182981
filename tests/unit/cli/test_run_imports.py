"""The daemon never loads what only the consumer and the pipeline need."""

import subprocess
import sys

UNWANTED = ("cramjam", "numpy", "pyarrow", "pyspark")
PROGRAM = f"""
import importlib, pkgutil, sys
import sidetier.cli.run_command
for room in ("config", "leadership", "segments", "storage", "telemetry", "uploader"):
    package = importlib.import_module("sidetier." + room)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.startswith("sidetier.segments.arrow"):
            importlib.import_module(module.name)
sys.exit(str(sorted(set({UNWANTED!r}) & set(sys.modules)) or ""))
"""


def test_no_module_of_the_daemons_rooms_loads_arrays_arrow_or_codecs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
