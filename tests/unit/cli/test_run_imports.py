"""The daemon imports neither packages of other commands nor modules of disabled features."""

import subprocess
import sys

UNWANTED = ("cramjam", "kio", "numpy", "pyarrow", "pyspark", "scramp")
PROGRAM = f"""
import importlib, pkgutil, sys
# prometheus-client imports it if it is installed, and only clients in tests need it.
sys.modules["snappy"] = None
import sidetier.cli.commands.run
def load(name):
    module = importlib.import_module(name)
    for inner in pkgutil.iter_modules(getattr(module, "__path__", ()), name + "."):
        if inner.name != "sidetier.segments.arrow":
            load(inner.name)
for room in ("config", "leadership", "segments", "storage", "telemetry", "uploader"):
    load("sidetier." + room)
assert "sidetier.uploader.engine" in sys.modules
found = sorted(set({UNWANTED!r}) & set(sys.modules))
sys.exit(str(found) if found else 0)
"""


def test_daemon_modules_import_no_numpy_pyarrow_or_codecs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_sidecar_without_local_retention_loads_nothing_for_it_and_no_tables() -> None:
    program = """
import sys
import sidetier.cli.commands.run
loaded = {"rich", "pygments", "sidetier.uploader.trim.trimmer"} & set(sys.modules)
sys.exit(str(loaded) if loaded or "structlog" not in sys.modules else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
