"""Continuous exports while the archive that they read is quarantined."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from sidetier.cli.export import session
from sidetier.pipeline.export import files_export
from sidetier.pipeline.export.sinks.files.engines import LocalEngine
from sidetier.pipeline.export.sinks.files.tasks import Done, Task
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.factory import open_plain
from sidetier.storage.settings import StorageEndpoint
from tests.harness.command_line import CommandLine
from tests.harness.diverged_archive import (
    END,
    FORK,
    Between,
    before_the_election,
    elect_uncleanly,
    go_on,
    nothing,
    present,
    set_aside,
)
from tests.harness.exported_files import data_files, manifest_in, rows_of
from tests.harness.intercepted_store import KilledError
from tests.harness.made_archive import MadeArchive
from tests.harness.tailed_log import TailedLog

ID = "id-1"
Step = Callable[[], object]


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(tmp_path, capsys)


@pytest.fixture
def orders(cli: CommandLine) -> Iterator[MadeArchive]:
    store = open_plain(StorageEndpoint(f"file://{cli.store}"))
    archive = MadeArchive(store, ArchiveLayout("prod-a", 3))
    before_the_election(archive, ID)
    yield archive
    store.close()


@pytest.fixture
def once_planned(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Run one of these actions in each round, between its plan and its reads."""
    steps: list[Step] = []
    read = LocalEngine.run

    def run(self: LocalEngine, tasks: Sequence[Task]) -> Sequence[Done]:
        if steps:
            steps.pop(0)()
        return read(self, tasks)

    monkeypatch.setattr(LocalEngine, "run", run)
    return steps


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Between]:
    def stop_after(*steps: Step) -> Between:
        stop = Between(*steps)
        monkeypatch.setattr(session, "stopping", lambda **_: nullcontext(stop))
        return stop

    return stop_after


def objects(cli: CommandLine) -> dict[str, bytes]:
    root = cli.root / "lake"
    files = [path for path in root.rglob("*") if path.is_file() and ".sidetier" not in path.parts]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def values(cli: CommandLine) -> Counter[tuple[int, bytes]]:
    files = data_files(objects(cli))
    return Counter(
        (row["offset"], row["value"]) for key in files for row in rows_of(key, files[key])
    )


def die() -> None:
    raise KilledError


def export(cli: CommandLine, *options: str, code: int = 0) -> None:
    line = ("export", "files", "orders", "--into", f"file://{cli.root}/lake")
    assert cli.run(*line, *options) == code, cli.err


def test_round_over_a_quarantined_archive_is_planned_again(
    cli: CommandLine,
    orders: MadeArchive,
    once_planned: list[Step],
    between: Callable[..., Between],
) -> None:
    """The sidecar has finished by the next round, and none of these records had been exported."""
    once_planned.append(lambda: elect_uncleanly(orders, topic_id=ID))
    stood: list[dict[int, int]] = []
    stop = between(lambda: stood.append(manifest_in(objects(cli)).next_offsets))
    export(cli, "--follow")
    assert not stop.left
    assert "moved to quarantine or replaced" in cli.err
    assert "; tried again" in cli.err
    assert stood == [{}], "nothing of that round is part of the output"
    assert values(cli) == present()


def test_divergence_below_exported_records_without_an_epoch_history_ends_the_export(
    cli: CommandLine, orders: MadeArchive, between: Callable[..., Between]
) -> None:
    """No later round could detect that the records of [24, 40) were replaced."""
    orders.store.delete_object(orders.layout.epoch_checkpoint_key(orders.tp))
    export(cli)
    between(lambda: elect_uncleanly(orders, topic_id=ID), nothing)
    export(cli, "--follow", code=1)
    assert "moved to quarantine or replaced" in cli.err
    assert "tried again" not in cli.err
    assert manifest_in(objects(cli)).next_offsets == {0: 40}


def test_quarantine_without_follow_is_an_error_and_the_next_run_continues(
    cli: CommandLine, orders: MadeArchive, once_planned: list[Step]
) -> None:
    once_planned.append(lambda: elect_uncleanly(orders, topic_id=ID))
    export(cli, code=1)
    assert "moved to quarantine or replaced" in cli.err
    assert "tried again" not in cli.err
    assert manifest_in(objects(cli)).pending is None, "what it began with is not gone on with"
    export(cli)
    assert values(cli) == present()


def test_truncation_of_exported_records_ends_the_export(
    cli: CommandLine, orders: MadeArchive, between: Callable[..., Between]
) -> None:
    stop = between(lambda: elect_uncleanly(orders, topic_id=ID), nothing, nothing)
    export(cli, "--follow", code=1)
    assert len(stop.left) == 1, "one round has noticed, one has told"
    assert "the brokers have discarded records that were exported" in cli.err
    assert "offsets [24, 40) (leader epoch 3, now 4)" in cli.err
    assert manifest_in(objects(cli)).next_offsets == {0: 40}


def test_truncated_records_are_exported_again_with_reread(
    cli: CommandLine, orders: MadeArchive, between: Callable[..., Between]
) -> None:
    between(lambda: elect_uncleanly(orders, topic_id=ID), nothing)
    export(cli, "--follow", "--on-truncation", "reread")
    assert values(cli) == present()


@pytest.mark.parametrize("reread", [False, True])
def test_quarantined_archive_is_waited_for_until_it_can_be_compared(
    cli: CommandLine,
    orders: MadeArchive,
    between: Callable[..., Between],
    reread: bool,  # noqa: FBT001
) -> None:
    """The new leader's first segment arrives some rounds later."""
    steps = (lambda: set_aside(orders, ID), nothing, nothing)
    stop = between(*steps, lambda: go_on(orders, topic_id=ID), nothing)
    export(cli, "--follow", "--on-truncation", "reread" if reread else "error", code=not reread)
    told = f"exported up to offset 40, but the archive ends at {FORK}, of the same topic"
    assert cli.err.count(told) == 1
    if reread:
        assert values(cli) == present()
    else:
        assert "offsets [24, 40) (leader epoch 3, now 4)" in cli.err
        assert len(stop.left) == 1


def test_shorter_archive_of_an_unknown_topic_id_ends_the_export(
    cli: CommandLine, orders: MadeArchive, between: Callable[..., Between]
) -> None:
    orders.mark(30, 40)  # of an unknown topic
    stop = between(lambda: set_aside(orders), nothing, nothing)
    export(cli, "--follow", code=1)
    assert len(stop.left) == 1
    assert "the topic was deleted and created again, or its archive was moved away" in cli.err


def test_recreated_topic_ends_the_export(
    cli: CommandLine, orders: MadeArchive, between: Callable[..., Between]
) -> None:
    stop = between(lambda: elect_uncleanly(orders, 30, topic_id="id-2"), nothing, nothing)
    export(cli, "--follow", code=1)
    assert len(stop.left) == 1
    assert "the topic id id-1, but the next records have id-2" in cli.err


def test_retired_archive_ends_the_export(
    cli: CommandLine,
    orders: MadeArchive,
    once_planned: list[Step],
    between: Callable[..., Between],
) -> None:
    def retire() -> None:
        for row in list(orders.store.list_objects("")):
            if "/orders-0/" in row.key:
                orders.store.delete_object(row.key)

    once_planned.append(retire)
    stop = between(nothing, nothing)
    export(cli, "--follow", code=2)
    assert len(stop.left) == 1
    assert "retired or removed while it was read" in cli.err
    assert "topic orders: nothing of it is stored" in cli.err
    assert data_files(objects(cli)) == {}


@pytest.mark.parametrize("before", [0, 30], ids=["of the first run", "behind another"])
def test_quarantined_records_of_a_killed_runs_plan_are_waited_for(
    cli: CommandLine,
    orders: MadeArchive,
    once_planned: list[Step],
    between: Callable[..., Between],
    before: int,
) -> None:
    """The plan is abandoned, because the archive now ends below the plan's end."""
    if before:
        orders.mark(20, before, topic_id=ID)
        export(cli)
        orders.mark(30, 40, topic_id=ID)
    once_planned.append(die)
    with pytest.raises(KilledError):
        export(cli)
    assert manifest_in(objects(cli)).pending is not None
    set_aside(orders, ID)
    between(lambda: go_on(orders, topic_id=ID), nothing)
    export(cli, "--follow", "--on-truncation", "reread")
    assert "withdrawn: it reads records that are not stored: topic orders, partition 0" in cli.err
    assert values(cli) == present()


def test_quarantined_records_of_a_killed_runs_plan_are_not_missing(
    cli: CommandLine, orders: MadeArchive, once_planned: list[Step]
) -> None:
    """Otherwise they would count as exported and be lost."""
    skip = ("--on-data-loss", "skip")
    once_planned.append(die)
    with pytest.raises(KilledError):
        export(cli, *skip)
    set_aside(orders, ID)
    export(cli, *skip)
    stood = manifest_in(objects(cli))
    assert (stood.next_offsets, stood.missing) == ({0: FORK}, ())
    go_on(orders, topic_id=ID)
    export(cli, *skip)
    assert values(cli) == present()


def test_quarantine_while_the_tail_is_waited_for_is_planned_again(
    cli: CommandLine,
    orders: MadeArchive,
    between: Callable[..., Between],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files_export, "broker_ends", lambda *_: {0: END})
    stop = between(lambda: elect_uncleanly(orders, topic_id=ID), nothing)
    export(cli, "--follow", "--tail", "wait")
    assert not stop.left
    assert cli.err.count("; tried again") == 1
    assert values(cli) == present()


def test_missing_segment_ends_the_export_at_once(
    cli: CommandLine,
    orders: MadeArchive,
    once_planned: list[Step],
    between: Callable[..., Between],
) -> None:
    once_planned.append(lambda: orders.lose(20))
    stop = between(nothing)
    export(cli, "--follow", code=1)
    assert len(stop.left) == 1
    assert "offsets [20, 30)" in cli.err
    assert "tried again" not in cli.err


@pytest.mark.parametrize("reading", [False, True], ids=["between rounds", "while it reads"])
def test_rounds_follow_tail_packs_until_exported_records_are_discarded(
    cli: CommandLine,
    once_planned: list[Step],
    between: Callable[..., Between],
    monkeypatch: pytest.MonkeyPatch,
    *,
    reading: bool,
) -> None:
    monkeypatch.setattr("sidetier.pipeline.export.request.PACK_SECONDS", 0.0)
    log = TailedLog(store=open_plain(StorageEndpoint(f"file://{cli.store}")))
    for _ in range(8):
        log.write(9, 3, transactional=False)
    log.archived(0, 6, 12)
    log.pack(1, 0, (12, 18))
    ends: list[dict[int, int]] = []

    def grow() -> None:
        ends.append(manifest_in(objects(cli)).next_offsets)
        log.pack(1, 1, (18, 24))

    def elect() -> None:
        log.elected_uncleanly(21).claim(2, 0)

    if reading:
        once_planned += [nothing, elect]
    between(grow, nothing if reading else elect, nothing)
    export(cli, "--follow", "--tail", "packs", code=1)
    assert ends == [{0: 18}]
    assert manifest_in(objects(cli)).next_offsets == {0: 24}
    assert "offsets [21, 24) (leader epoch 0, now 1)" in cli.err
    log.store.close()
