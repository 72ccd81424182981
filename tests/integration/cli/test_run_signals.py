"""`sidetier run` under a supervisor."""

import sys
from pathlib import Path

import pytest

from tests.harness.archive_objects import file_store
from tests.harness.log_dir import LogDir
from tests.harness.sidecar import Sidecar, basic_settings, merged

pytestmark = pytest.mark.integration

TERMINATED_WHEN_STARTED = """
import os, signal, sys

class Terminating:
    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        self.stream.write(text)
        if '"daemon.started"' in text:
            os.kill(os.getpid(), signal.SIGTERM)
        return len(text)

    def __getattr__(self, name):
        return getattr(self.stream, name)

sys.stdout, sys.stderr = Terminating(sys.stdout), Terminating(sys.stderr)

from sidetier.cli.main import main

main()
"""


def test_sigterm_right_after_the_start_ends_without_an_error(tmp_path: Path) -> None:
    log_dir = LogDir(tmp_path / "logs")
    log_dir.create("t").closed_segments(2)
    log_dir.checkpoint_high_watermarks()
    store = file_store(tmp_path / "store")
    settings = merged(basic_settings([log_dir.path], store), {"leadership": {"source": "static"}})
    program = [sys.executable, "-c", TERMINATED_WHEN_STARTED]
    with Sidecar(tmp_path / "sidecar", settings, store, program=program) as sidecar:
        assert sidecar.exit_code() == 0
        assert sidecar.seen("daemon.stopped")
