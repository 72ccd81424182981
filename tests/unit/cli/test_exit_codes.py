"""One rule for all commands: an impossible name, offset or time exits with code 2, and the message
says what exists. See docs/operations.md, "Signals and exit codes".
"""

import pytest

from sidetier.segments.offsets import TopicPartition
from tests.harness.command_line import CommandLine
from tests.harness.fake_cluster import FakeCluster


@pytest.fixture(autouse=True)
def archive(cli: CommandLine) -> None:
    """Archives of orders-0 with the offsets 0 to 29 and orders-eu-0 with 0 to 9."""
    cli.log_dir.create("orders", 0).closed_segments(3)
    cli.log_dir.create("orders-eu", 0).closed_segments(1)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill") == 0


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster where broker 1 leads orders-0 as its only replica."""
    fake = FakeCluster()
    fake.add(TopicPartition("orders", 0), 1, start=0, high_watermark=45)
    for module in ("commands.can_i_lose", "inspect.facts"):
        monkeypatch.setattr(f"sidetier.cli.{module}.open_cluster", lambda *_: fake)


WRONG = [
    ("ls order", "there is no topic order in the archive of cluster prod-a at file://"),
    ("ls order", "did you mean orders?"),
    ("ls payments", "topics there: orders, orders-eu"),
    ("ls orders 7", "there is no partition orders-7 in the archive"),
    ("ls orders 7", "partitions of orders there: 0"),
    ("retire order --offline", "did you mean orders?"),
    ("retire order --offline --dry-run", "did you mean orders?"),
    ("retire orders -p 7 --offline --dry-run", "there is no partition orders-7 in the archive"),
    ("consume order", "did you mean orders?"),
    ("consume orders 7", "there is no partition orders-7 in the archive"),
    ("consume orders --from 31", "orders-0: --from is offset 31, beyond the end, offset 30"),
    ("consume orders --from 2999-01-01", "--from is in the future"),
    ("consume orders --from 20 --to 10", "--from is above --to"),
    ("consume orders --from end --to beginning", "--from is above --to"),
    ("consume orders --from -5 --to -10", "--from is above --to"),
    ("consume orders --from 20 --to @1700000000003", "--from is offset 20, above --to, offset 3"),
    ("consume orders --output table", "add --count"),
    ("consume orders --output raw --count", "omit --count"),
    ("backfill -t order", "order is not in the log dirs"),
    ("backfill -p orders-7 --dry-run", "orders-7 is not in the log dirs"),
    ("export files order --into file:///tmp/lake", "topic order: nothing of it is stored"),
    ("can-i-lose 9", "there is no broker 9"),
    ("explain order 0 5", "neither the cluster nor the archive has it"),
]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("line", "text"), WRONG)
def test_impossible_arguments_exit_with_2(cli: CommandLine, line: str, text: str) -> None:
    before = cli.stored()
    assert cli.run(*line.split()) == 2, cli.out
    assert text in cli.err + cli.out
    assert cli.stored() == before


RIGHT = [
    ("ls orders", 0),
    ("ls orders 0", 0),
    ("retire orders --offline --dry-run", 0),
    ("consume orders --from 30", 0),
    ("consume orders --from end", 0),
    ("consume orders --from 10 --to 10", 0),
    ("consume orders --from @1750000000000", 0),
    ("backfill -t orders", 0),
    ("explain orders 0 5", 0),
    ("explain orders 0 99", 4),
]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("line", "code"), RIGHT)
def test_possible_arguments_do_not_exit_with_2(cli: CommandLine, line: str, code: int) -> None:
    assert cli.run(*line.split()) == code, cli.err


def test_partition_without_records_in_the_range_is_mentioned(cli: CommandLine) -> None:
    cli.log_dir.create("orders", 1).closed_segments(1)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill") == 0
    assert cli.run("consume", "orders", "--from", "15", "--count") == 0
    assert "orders-1: --from is offset 15, beyond the end, offset 10 (exclusive)" in cli.err
    assert cli.lines()[-1] == "15 records of orders"


def test_topic_that_was_already_retired_is_no_error(cli: CommandLine) -> None:
    assert cli.run("retire", "orders", "--offline") == 0
    for line in (["retire", "orders"], ["retire", "orders", "-p", "0"]):
        assert cli.run(*line, "--offline") == 0
        assert cli.lines() == ["everything named was retired before; nothing is left to move"]
    assert cli.run("retire", "orders", "-p", "1", "--offline") == 2
    assert cli.run("ls", "orders") == 2
