"""Tables and JSON of representative commands, compared with `outputs.txt`.

`UPDATE_GOLDEN=1` rewrites the file.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidetier import __version__
from sidetier.cli.main import run
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import BaseOffset, BrokerId, Offset
from sidetier.telemetry.http import HttpServer
from sidetier.telemetry.metrics import create_registry
from sidetier.telemetry.pages import Application
from sidetier.telemetry.status import (
    Condition,
    PartitionState,
    PartitionStatus,
    SegmentStatus,
    StatusSnapshot,
)
from tests.harness.command_line import CommandLine
from tests.harness.fake_cluster import FakeCluster
from tests.harness.log_dir import PartitionLog

GOLDEN = Path(__file__).with_name("outputs.txt")
VARIABLE = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?"
    r"|(?<=_ms\": )1[789]\d{11}"
    r"|\b[0-9a-f]{32}\b"
    r"|\b\d+(\.\d+)?(?= (s|min|ms)\b)"
    r"|(?<=seconds\": )\d+\.\d+"
    r"|(?<=127\.0\.0\.1:)\d+"
)
PROGRESS = re.compile(r"^\d+%: .*\n", re.MULTILINE)
COMMANDS = (
    "backfill",
    "ls",
    "ls --quick",
    "ls orders 0",
    "locate orders 0",
    "consume orders 0 --from 0 --to 2",
    "consume orders 0 --count",
    "status --sidecar SIDECAR",
    "fleet status --sidecar HOST",
    "explain orders 0 5 --sidecar SIDECAR",
    "explain orders 0 31 --sidecar SIDECAR",
    "can-i-lose 1 --sidecar SIDECAR",
    "verify",
    "verify --deep",
    "repair --dry-run",
    "retire orders --offline --dry-run",
    "gc --dry-run",
    "gc --orphans --dry-run",
    "gc --multipart-uploads --dry-run",
    "hydrate plan ROOT/plan.json --dry-run",
    "DAMAGE",
    "verify --deep",
    "ls orders 0",
    "repair --dry-run",
    "ack-gap orders 0 10 20 --reason known --user ann",
    "gc --orphans --dry-run",
    "hydrate plan ROOT/plan.json --dry-run",
    "config check",
    "config show",
)


class Page:
    """The status of a sidecar with a segment that waits after an error."""

    def snapshot(self, *, with_partitions: bool = True) -> StatusSnapshot:
        segment = SegmentStatus(
            BaseOffset(30), Offset(40), 100, "queued", pinned=True, marked_for_deletion=False,
            error=None,
        )  # fmt: skip
        partition = PartitionStatus(
            "orders", 0, PartitionState.WAITING, next_offset=Offset(30), unstored_segments=1,
            last_error="put orders-0: 403", segments=(segment,),
        )  # fmt: skip
        return StatusSnapshot(
            "prod-a",
            BrokerId(1),
            conditions=(Condition("bootstrapped", holds=True),),
            partitions=(partition,) if with_partitions else (),
        )


@pytest.fixture
def sidecar() -> Iterator[str]:
    server = HttpServer("127.0.0.1", 0, Application(create_registry(), Page()))
    server.start()
    yield server.url
    server.stop()


@pytest.fixture
def log(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> PartitionLog:
    """Three archived segments, one that is not archived, and five records in the active one."""
    log = cli.log_dir.create("orders")
    log.closed_segments(3)
    cli.log_dir.checkpoint_high_watermarks()
    fake = FakeCluster()
    fake.add(log.tp, 1, start=0, high_watermark=45)
    monkeypatch.setattr("sidetier.cli.commands.can_i_lose.open_cluster", lambda *_: fake)
    monkeypatch.setattr("sidetier.cli.inspect.facts.open_cluster", lambda *_: fake)
    return log


def damage(cli: CommandLine, log: PartitionLog) -> None:
    """Record a gap, damage a log, remove an index, and add an object that no archive has."""
    gap = cli.store / ArchiveLayout("prod-a", 3).gap_key(log.tp, Offset(10), Offset(20))
    gap.parent.mkdir(parents=True)
    gap.write_text("{}")
    cli.remove("00000000000000000020.timeindex")
    [damaged] = cli.store.rglob("00000000000000000010.log")
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    damaged.with_name("00000000000000000025.index").write_bytes(b"")


def test_every_output_is_as_before(
    cli: CommandLine,
    log: PartitionLog,
    sidecar: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = []
    cli.configure({"retention": {"store": [{"topics": ["orders"], "age": "1d"}]}})
    assert cli.run("config") == 2  # writes the configuration
    monkeypatch.setenv("SIDETIER_CONFIG", str(cli.root / "sidetier.yaml"))
    names = {"SIDECAR": sidecar, "HOST": sidecar.removeprefix("http://"), "ROOT": str(cli.root)}
    for line in COMMANDS:
        if line == "DAMAGE":
            damage(cli, log)
            continue
        for suffix in ((), ("--output", "json")):
            words = [re.sub("SIDECAR|HOST|ROOT", lambda m: names[m[0]], w) for w in line.split()]
            capsys.readouterr()
            code = run([*words, *suffix])
            out, err = capsys.readouterr()
            text = f"{out}{err}".replace(str(cli.root), "ROOT").replace(__version__, "V")
            text = PROGRESS.sub("", text)
            text = re.sub(r"(?<=\S) {2,}", "  ", text)  # columns are as wide as the paths
            shown.append(
                f"$ {' '.join((line, *suffix))}\n{VARIABLE.sub('~', text)}exit code {code}\n"
            )
        if line == "backfill":
            log.closed_segment()
            log.append(5)
    found = "\n".join(shown)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(found, encoding="utf-8")
    assert found == GOLDEN.read_text(encoding="utf-8"), (
        "an output differs: read the difference, then run this test with UPDATE_GOLDEN=1"
    )
