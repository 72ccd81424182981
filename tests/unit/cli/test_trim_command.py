"""`sidetier trim` names the consumer groups that skip records."""

import io
from dataclasses import replace

from sidetier.cli.commands.trim import TrimResult
from sidetier.cli.output import OutputFormat, emit
from sidetier.segments.cluster_state import GroupMember
from sidetier.segments.offsets import BrokerId, Offset, TopicPartition
from sidetier.uploader.trim.groups_behind import GroupBehind
from sidetier.uploader.trim.single_pass import TrimReport


def behind(group: str, partition: int, committed: int) -> GroupBehind:
    return GroupBehind(group, TopicPartition("orders", partition), Offset(committed), Offset(40))


REPORT = TrimReport(
    BrokerId(1),
    dry_run=True,
    led=2,
    trims=(),
    groups_behind=(behind("billing", 0, 10), behind("billing", 1, 15), behind("old", 0, 39)),
    notes=("consumer groups: some are hidden",),
    members={"billing": (GroupMember("app", "10.0.0.7"),)},
)


def text_of(report: TrimReport) -> str:
    stream = io.StringIO()
    emit(TrimResult(report), OutputFormat.TABLE, stream)
    return stream.getvalue()


def test_groups_are_added_up_by_topic_with_their_members_and_what_to_change() -> None:
    shown = text_of(REPORT)
    lines = [line.split(maxsplit=4) for line in shown.splitlines()]
    assert ["billing", "orders", "2", "55", "1: app at 10.0.0.7"] in lines
    assert ["old", "orders", "1", "1", "unknown"] in lines
    assert "brokers do not show which groups these are" in shown
    assert "To change it, set bootstrap.servers of the group's clients to" in shown
    assert "or let the group catch up first" in shown
    assert "consumer groups: some are hidden" in shown
    assert "catch up" not in text_of(replace(REPORT, dry_run=False)), "it is too late"
    assert "To change it" not in text_of(replace(REPORT, groups_behind=()))


def test_groups_as_json() -> None:
    told = TrimResult(REPORT).as_json()
    assert isinstance(told, dict)
    assert told["groups"] == [
        {
            "group": "billing",
            "topic": "orders",
            "partitions": 2,
            "skipped_offsets": 55,
            "members": [{"client_id": "app", "host": "10.0.0.7"}],
        },
        {
            "group": "old",
            "topic": "orders",
            "partitions": 1,
            "skipped_offsets": 1,
            "members": None,
        },
    ]
    assert told["groups_behind"][0] == {
        "group": "billing",
        "topic": "orders",
        "partition": 0,
        "committed_offset": 10,
        "log_start_offset": 40,
        "skipped_offsets": 30,
    }
