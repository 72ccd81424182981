"""Incremental fetch sessions: what each request names, and what an answer changes."""

from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from sidetier.segments.offsets import LeaderEpoch, Offset, TopicPartition
from sidetier.wire.fetch_session import FetchChanges, FetchPosition, FetchSession, Forgotten
from sidetier.wire.protocol import ApiKey, build_request, encode
from sidetier.wire.record_requests import send_fetch
from tests.unit.wire.test_record_requests import Sent

if TYPE_CHECKING:
    from sidetier.wire.connection import Connection

OLD, NEW = UUID(int=1), UUID(int=2)
IDS = {"topic": OLD, "other": UUID(int=3)}


def at(number: int, offset: int = 0, topic: str = "topic", epoch: int = 5) -> FetchPosition:
    return FetchPosition(TopicPartition(topic, number), Offset(offset), 100, LeaderEpoch(epoch))


def begun(*positions: FetchPosition, ids: dict[str, UUID] | None = None) -> FetchSession:
    """A session of these positions that a broker has accepted."""
    session = FetchSession()
    session.changes(positions, IDS if ids is None else ids)
    assert not session.is_refused(0, 7)
    return session


def test_the_first_request_names_all_and_the_next_ones_what_has_changed() -> None:
    session = FetchSession()
    first = session.changes([at(0), at(1)], IDS)
    assert first == FetchChanges(0, 0, [at(0), at(1)], [], by_id=True)
    assert not session.is_refused(0, 7)
    assert session.changes([at(0), at(1)], IDS) == FetchChanges(7, 1, [], [], by_id=True)
    assert not session.is_refused(0, 7)
    second = session.changes([at(0, 4), at(2), at(1, epoch=6)], IDS)
    assert second == FetchChanges(7, 2, [at(0, 4), at(2), at(1, epoch=6)], [], by_id=True)
    assert not session.is_refused(0, 7)
    left = session.changes([at(2)], IDS)
    assert left.positions == []
    gone = [Forgotten(TopicPartition("topic", number), OLD) for number in (0, 1)]
    assert left.forgotten == gone


def test_a_topic_that_was_created_again_is_forgotten_and_named() -> None:
    changes = begun(at(0), at(0, topic="other")).changes(
        [at(0), at(0, topic="other")], {**IDS, "topic": NEW}
    )
    assert changes.positions == [at(0)]
    assert changes.forgotten == [Forgotten(TopicPartition("topic", 0), OLD)]


def test_a_topic_without_an_id_begins_a_session_by_names() -> None:
    session = begun(at(0))
    changes = session.changes([at(0), at(0, topic="new")], IDS)
    assert changes == FetchChanges(7, 0, [at(0), at(0, topic="new")], [], by_id=False)
    assert not session.is_refused(0, 8)
    assert session.changes([at(0, topic="new")], IDS).forgotten == [
        Forgotten(TopicPartition("topic", 0), None)
    ]


@pytest.mark.parametrize(
    ("code", "session_id"),
    [
        (ErrorCode.fetch_session_id_not_found, 0),
        (ErrorCode.invalid_fetch_session_epoch, 7),
        (ErrorCode.fetch_session_topic_id_error, 7),
        (ErrorCode.inconsistent_topic_id, 7),
    ],
)
def test_a_refused_session_is_begun_again_once(code: ErrorCode, session_id: int) -> None:
    session = begun(at(0))
    session.changes([at(0)], IDS)
    assert session.is_refused(code, 0)
    assert session.changes([at(0)], IDS) == FetchChanges(session_id, 0, [at(0)], [], by_id=True)
    assert not session.is_refused(code, 0), "a full request was refused: no other one will do"


def test_without_room_and_after_a_lost_answer_all_is_named() -> None:
    session = FetchSession()
    for _ in range(2):
        assert session.changes([at(0)], IDS).epoch == 0
        assert not session.is_refused(0, 0)
    session = begun(at(0))
    session.changes([at(0, 5)], IDS)
    session.restart()
    assert session.changes([at(0, 5)], IDS) == FetchChanges(7, 0, [at(0, 5)], [], by_id=True)


def test_the_epoch_begins_again_at_one() -> None:
    session = begun(at(0))
    session._epoch = 2**31 - 1
    assert session.changes([at(0)], IDS).epoch == 2**31 - 1
    assert not session.is_refused(0, 7)
    assert session.changes([at(0)], IDS).epoch == 1


@pytest.mark.parametrize("version", [7, 11, 12, 13, 16])
def test_a_request_in_a_session_is_the_same_as_that_of_kio(version: int) -> None:
    by_id = version >= 13
    ids = IDS if by_id else {}
    session = begun(at(0), at(1), at(4, topic="other"), ids=ids)
    sent = Sent(version)
    send_fetch(
        cast("Connection", sent),
        [at(1, 9)],
        topic_ids=ids,
        max_wait=0.25,
        timeout=7,
        session=session,
    )

    def named(topic: str, **fields: object) -> dict[str, Any]:
        return {**({"topic_id": IDS[topic]} if by_id else {"topic": topic}), **fields}

    position = {
        "partition": 1,
        "current_leader_epoch": 5 if version >= 9 else -1,
        "fetch_offset": 9,
        "partition_max_bytes": 100,
    }
    request = build_request(
        ApiKey.FETCH,
        version,
        replica_id=-1,
        max_wait=250,
        min_bytes=1,
        max_bytes=64 << 20,
        isolation_level=0,
        session_id=7,
        session_epoch=1,
        topics=[named("topic", partitions=[position])],
        forgotten_topics_data=[named("topic", partitions=[0]), named("other", partitions=[4])],
        rack_id="",
    )
    assert sent.version_sent == version
    assert sent.body == encode(request)
