"""The sidecar stands back for the broker."""

import os
import subprocess
import sys

import pytest

CODE = """
import os, sys
from sidetier.cli.priority import stand_back
stand_back(int(sys.argv[1]))
print(os.getpriority(os.PRIO_PROCESS, 0))
"""
THREADS = """
import os, sys, threading
from sidetier.cli.priority import begin_upload_thread
begin = begin_upload_thread(sys.argv[1])
def work():
    begin()
    print(os.sched_getscheduler(0))
for _ in range(3):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print(os.sched_getscheduler(0))
"""
REFUSED = """
import os, sys
from sidetier.cli.priority import begin_upload_thread
def refuse(*_):
    raise PermissionError
os.sched_setscheduler = refuse
begin = begin_upload_thread("idle")
begin()
begin()
"""


def _lines(code: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", code, *arguments]
    answer = subprocess.run(
        command, check=True, capture_output=True, start_new_session=True, text=True
    )
    return answer.stdout.split()


@pytest.mark.parametrize("niceness", [0, 10, 19])
def test_a_process_lowers_itself_and_never_rises(niceness: int) -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert _lines(CODE, str(niceness)) == [str(max(before, niceness))]


def test_all_upload_threads_but_one_run_when_nobody_else_wants_to() -> None:
    usual = str(os.sched_getscheduler(0))
    first, *others, main = _lines(THREADS, "idle")
    assert others == [str(os.SCHED_IDLE)] * 2
    assert first == main == usual, "one is left, so that a busy machine cannot starve the archive"


def test_threads_stay_as_they_are_when_told_so() -> None:
    assert _lines(THREADS, "normal") == [str(os.sched_getscheduler(0))] * 4


def test_a_sandbox_that_refuses_is_no_obstacle() -> None:
    assert _lines(REFUSED) == []
