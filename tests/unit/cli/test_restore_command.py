"""`sidetier restore`: arguments refused before any broker request, and the output."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sidetier.archive.objects.cluster_snapshots import content_json, encode_snapshot
from sidetier.cli.restore.view import PlanResult, RestoreResult, notes
from sidetier.mirror.copy.archive_source import ArchiveSource
from sidetier.mirror.copy.engine import Counts
from sidetier.mirror.copy.run import CopyReport
from sidetier.mirror.copy.source import SourceGap
from sidetier.mirror.restore.copy_check import CheckedCopy
from sidetier.mirror.restore.plan import PartitionRestore, RestoreNote
from sidetier.mirror.restore.run import RestorePlan, RestoreReport
from sidetier.mirror.restore.translation import group_offsets
from sidetier.mirror.spark_driver import verdict
from sidetier.mirror.topics.rules import Lineage
from sidetier.pipeline.spark.session import spark_session
from sidetier.segments.cluster_state import CommittedOffset, GroupOffsets, SnapshotKind
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import Offset
from sidetier.storage.fake import FakeStorage
from sidetier.storage.local import LocalStorage
from tests.harness.command_line import CommandLine
from tests.harness.made_archive import LAYOUT, TP, MadeArchive, access_to
from tests.harness.mirror_target import TARGET

SOMEWHERE = ("--bootstrap-server", "127.0.0.1:1")
ON_SPARK = ("--topic", "orders", *SOMEWHERE, "--engine", "spark")


@pytest.fixture
def stored(cli: CommandLine) -> CommandLine:
    cli.log_dir.create("orders", 0).closed_segments(2)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill") == 0
    return cli


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("--topic", "orders"), "bootstrap.servers=HOST:PORT is missing"),
        (SOMEWHERE, "--topic is missing"),
        (("--topic", "pay", *SOMEWHERE), "nothing is archived of pay"),
        (("--partition", "orders-7", *SOMEWHERE), "nothing is archived of orders-7"),
        (("--partition", "orders", *SOMEWHERE), "give TOPIC-N, such as orders-3"),
        (("--topic", "orders", "--from", "soon", *SOMEWHERE), "'soon' is neither an offset"),
        (("--topic", "orders", "--to", "-2h", *SOMEWHERE), "'-2h' moves with now"),
        (("--topic", "orders", *SOMEWHERE, "--from-retired"), "--from-retired: no segment"),
        (
            ("--topic", "orders", "--from-quarantine", "a", "--from-retired", "b", *SOMEWHERE),
            "exclude each other",
        ),
        (("--name", "a b", "--topic", "orders", *SOMEWHERE), "restore name 'a b'"),
        (("--topic", "orders", *SOMEWHERE, "--master", "local[1]"), "--master is for --engine"),
        ((*ON_SPARK, "--on-gap", "skip"), "--on-gap skip is for --engine local"),
        ((*ON_SPARK, "--metrics-port", "9404"), "--metrics-port is for --engine local"),
    ],
)
def test_invalid_arguments_are_refused(
    stored: CommandLine, line: tuple[str, ...], said: str
) -> None:
    before = stored.stored()
    assert stored.run("restore", *line) == 2
    assert said in re.sub(r"\s+", " ", stored.err)
    assert stored.stored() == before


def test_secret_in_a_file_is_not_sent_to_executors(stored: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("sasl.username=me\nsasl.password=hunter2\n")
    assert stored.run("restore", *ON_SPARK, "--target-config", str(file)) == 2
    said = re.sub(r"\s+", " ", stored.err)
    assert "give --target sasl.password=env:NAME or sasl.password=file:/path" in said
    assert "hunter2" not in said


def test_missing_pyspark_error_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with (
        pytest.raises(ConfigurationError, match=r"--engine spark needs PySpark.*sidetier\[spark\]"),
        spark_session("local[1]", "restore", option="--engine spark"),
    ):
        pass


def test_incomplete_partitions_are_listed_with_the_cause_of_the_job() -> None:
    trace = (
        "Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times\n"
        "Traceback (most recent call last):\n"
        '  File "/app/wire/cluster.py", line 1, in request\n'
        "sidetier.segments.errors.BrokerUnavailableError: b:9092 refuses the connection\n"
        "\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner)\n"
    )
    text = verdict(
        [f"copy-{number} is restored up to 5 of 9" for number in range(25)], OSError(trace)
    )
    first, *lines, more, cause = text.splitlines()
    assert first.startswith("25 partitions are incomplete")
    assert len(lines) == 20
    assert more == "and 5 more"
    assert cause.endswith("BrokerUnavailableError: b:9092 refuses the connection")
    assert verdict(["copy-0"], None).splitlines()[1:] == ["copy-0"]


def planned(end: int = 60, archive_end: int = 60, last_stable_offset: int = 60) -> PartitionRestore:
    return PartitionRestore(
        TP,
        TARGET,
        Offset(0),
        Offset(end),
        Offset(archive_end),
        Offset(last_stable_offset),
        RestoreNote(Lineage("orders", ("lost",)), Offset(0)),
    )


def result(one: PartitionRestore, *problems: str, gaps: int = 0) -> RestoreResult:
    gap = SourceGap(TP, Offset(5), Offset(9), "deleted")
    report = RestoreReport(
        RestorePlan("dr", [one]),
        CopyReport(Counts(records=60, transactions=1, gaps=[gap] * gaps), 2.0),
        checked={TARGET: CheckedCopy(TARGET, 60, problems)},
    )
    return RestoreResult(report)


def test_exit_code_shows_whether_everything_was_restored() -> None:
    assert result(planned()).exit_code == 0
    assert result(planned(), "a difference").exit_code == 3
    assert result(planned(), gaps=1).exit_code == 3
    assert result(planned(end=40, last_stable_offset=40)).exit_code == 3
    unchecked = RestoreReport(RestorePlan("dr", [planned()]), CopyReport(Counts(), 1.0))
    assert RestoreResult(unchecked).exit_code == 0
    assert RestoreResult(replace(unchecked, stopped=True)).exit_code == 130


def test_omitted_offsets_and_remaining_settings_are_shown() -> None:
    plan = RestorePlan(
        "dr",
        [planned(end=40, last_stable_offset=40)],
        settings_left={"copy.orders": {"cleanup.policy": "compact,delete", "retention.ms": "5"}},
    )
    (table,) = PlanResult(plan).as_tables()
    assert table.footer is not None
    left_out, settings = table.footer.splitlines()
    assert "20 archived offsets from 40 on are left out" in left_out
    assert "--entity-name copy.orders --add-config" in settings
    assert "'cleanup.policy=[compact,delete],retention.ms=5'" in settings


def test_mismatching_topic_is_shown_as_a_configuration_error() -> None:
    plan = RestorePlan("dr", [planned()], frozenset({TARGET.topic}), {TARGET.topic: "not empty"})
    assert PlanResult(plan).exit_code == 2
    (table,) = PlanResult(plan).as_tables()
    assert table.rows[0][-1] == "not empty"


def test_group_offsets_come_from_the_newest_snapshot_with_the_topic() -> None:
    """The newest snapshot was taken after the topic was deleted."""
    store = FakeStorage()
    archive = access_to(store)
    with pytest.raises(ConfigurationError, match="no group offsets of cluster prod-a are stored"):
        group_offsets(archive, "billing", {"orders"})
    snapshots = {
        1000: {"billing": {"orders": {0: CommittedOffset(5)}}},
        2000: {"billing": {"orders": {0: CommittedOffset(7)}, "pay": {0: CommittedOffset(3)}}},
        3000: {"billing": {"pay": {0: CommittedOffset(4)}}},
    }
    kind = SnapshotKind.GROUP_OFFSETS
    for taken_ms, groups in snapshots.items():
        data = encode_snapshot(kind, "prod-a", taken_ms, 1, content_json(GroupOffsets(groups)))
        MadeArchive(store).put(LAYOUT.cluster_snapshot_key(kind, taken_ms, 1), data)
    taken_ms, found = group_offsets(archive, "billing", {"orders"})
    assert taken_ms == 2000
    assert found.groups == {"billing": snapshots[2000]["billing"]}
    with pytest.raises(ConfigurationError, match="no snapshot has offsets of group biling"):
        group_offsets(archive, "biling", {"orders"})


def test_stored_segments_above_the_archive_end_are_named(stored: CommandLine) -> None:
    store = LocalStorage(stored.store)
    MadeArchive(store, ArchiveLayout("prod-a", 3)).mark(0, 10)
    store.close()
    source = ArchiveSource(access_to(LocalStorage(stored.store), ArchiveLayout("prod-a", 3)))
    source.view(TP)
    assert source.above_end(TP) == (10,)
    text = notes([replace(planned(10, 10, 10), above_end=(10,))], {})
    assert text is not None
    assert "orders-0: 1 stored segments above the archive end 10 are not restored" in text
