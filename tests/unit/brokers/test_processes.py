import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidetier.brokers.errors import LocalServerError, ServerDiedError, ServerTimeoutError
from sidetier.brokers.processes import Command, ManagedProcess, stop_together
from tests.harness.waiting import wait_for, wait_until

SLEEPER = ["sleep", "60"]
STUBBORN = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"]

# Starts a server in a thread that ends at once, prints its PID, and waits to be killed.
PARENT = """
import sys, threading
from pathlib import Path
from sidetier.brokers.processes import Command, ManagedProcess
server = ManagedProcess(Command("sleeper", ["sleep", "60"], Path(sys.argv[1])))
starter = threading.Thread(target=server.start)
starter.start()
starter.join()
print(server.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "server.log"


@pytest.fixture
def sleeper(log: Path) -> Iterator[ManagedProcess]:
    with ManagedProcess(Command("sleeper", SLEEPER, log)) as process:
        process.start()
        yield process


def state_of(pid: int) -> str:
    """The letter of the process's state, such as T for stopped; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def test_stop_ends_the_process_by_sigterm(sleeper: ManagedProcess) -> None:
    pid = sleeper.pid
    wait_until(lambda: name_of(pid) == "sleep", 10, "the command to take over")
    sleeper.stop()
    assert not sleeper.running
    assert sleeper.returncode == -signal.SIGTERM
    sleeper.stop()


def test_stop_kills_a_process_that_ignores_sigterm(log: Path) -> None:
    with ManagedProcess(Command("stubborn", STUBBORN, log)) as process:
        process.start()
        process.wait_until(lambda: "ready" in log.read_text(), 10)
        process.stop(grace=0.1)
        assert process.returncode == -signal.SIGKILL


def test_process_can_be_restarted_and_its_log_grows(log: Path) -> None:
    process = ManagedProcess(Command("echo", ["echo", "hello"], log))
    for _ in range(2):
        process.start()
        process.wait(10)
    assert log.read_text() == "hello\nhello\n"


def test_start_does_not_affect_a_running_process(sleeper: ManagedProcess) -> None:
    pid = sleeper.pid
    sleeper.start()
    assert sleeper.pid == pid


def test_process_can_be_paused_and_resumed(sleeper: ManagedProcess) -> None:
    sleeper.pause()
    wait_until(lambda: state_of(sleeper.pid) == "T", 10, "the process to stand still")
    assert sleeper.running
    sleeper.resume()
    wait_until(lambda: state_of(sleeper.pid) == "S", 10, "the process to go on")


def test_paused_process_can_be_stopped(sleeper: ManagedProcess) -> None:
    wait_until(lambda: name_of(sleeper.pid) == "sleep", 10, "the command to take over")
    sleeper.pause()
    sleeper.stop(grace=10)
    assert sleeper.returncode == -signal.SIGTERM


def test_kill_ends_the_whole_process_group(log: Path) -> None:
    line = ["sh", "-c", "sleep 60 & echo $!; wait"]
    with ManagedProcess(Command("family", line, log)) as process:
        process.start()
        process.wait_until(lambda: log.read_text().endswith("\n"), 10)
        child = int(log.read_text())
        process.kill()
        wait_until(lambda: state_of(child) in {"", "Z"}, 10, "the grandchild's end")


def test_death_at_start_shows_the_log(log: Path) -> None:
    process = ManagedProcess(Command("broken", ["sh", "-c", "echo no such port; exit 3"], log))
    process.start()
    with pytest.raises(ServerDiedError, match=r"(?s)broken ended with exit code 3.*no such port"):
        process.wait_until(lambda: False, 10)


def test_missing_program_is_a_death_at_start(log: Path) -> None:
    process = ManagedProcess(Command("absent", ["no-such-program-here"], log))
    process.start()
    with pytest.raises(ServerDiedError, match="no-such-program-here"):
        process.wait_until(lambda: False, 10)


def test_timeout_at_start_shows_the_log(sleeper: ManagedProcess, log: Path) -> None:
    log.write_text("still loading\n")
    with pytest.raises(ServerTimeoutError, match=r"(?s)within 0.1 s.*still loading"):
        sleeper.wait_until(lambda: False, 0.1)


def test_process_that_is_not_running_cannot_be_paused(log: Path) -> None:
    process = ManagedProcess(Command("idle", SLEEPER, log))
    assert not process.running
    assert process.returncode is None
    with pytest.raises(LocalServerError, match="idle does not run"):
        process.pause()
    with pytest.raises(LocalServerError, match="never started"):
        _ = process.pid


def test_all_processes_are_stopped_in_parallel(tmp_path: Path) -> None:
    processes = [
        ManagedProcess(Command(f"server {n}", SLEEPER, tmp_path / f"{n}.log")) for n in range(3)
    ]
    for process in processes:
        process.start()
    stop_together(processes, grace=10)
    assert [process.running for process in processes] == [False, False, False]


def test_killed_parent_leaves_no_orphan(log: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(log)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        wait_for(lambda: name_of(child) == "sleep" or None, 10, "the command to take over")
        os.kill(parent.pid, signal.SIGKILL)
        wait_until(lambda: state_of(child) in {"", "Z"}, 10, "the child's end")
