"""The sidecar gives the broker priority for CPU and disk."""

import os
import subprocess
import sys

import pytest

CODE = """
import os, sys
from sidetier.cli.commands.run import stand_back
stand_back(int(sys.argv[1]))
print(os.getpriority(os.PRIO_PROCESS, 0))
"""


def _lines(code: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", code, *arguments]
    answer = subprocess.run(
        command, check=True, capture_output=True, start_new_session=True, text=True
    )
    return answer.stdout.split()


@pytest.mark.parametrize("niceness", [0, 10, 19])
def test_process_lowers_its_priority_and_never_raises_it(niceness: int) -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert _lines(CODE, str(niceness)) == [str(max(before, niceness))]
