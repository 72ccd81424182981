"""What the simulation of an archive and a live cluster has found, step by step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kio.schema.errors import ErrorCode

from tests.harness.live_world import EARLIEST, Endpoint, World, answered_by

NONE, STORE, BROKER = ErrorCode.none, 0.0, float("inf")


@contextmanager
def endpoint(
    window: float, batches: int = 8, archived: int = 2
) -> Iterator[tuple[World, Endpoint]]:
    """Yield a world with batches of two records, some archived segments of two batches, and an
    endpoint.
    """
    world = World()
    append(world, *[0] * batches)
    world.act(lambda: world.upload(archived))
    with answered_by(world):
        made = Endpoint(world, window)
        try:
            yield world, made
        finally:
            made.close()


def append(world: World, *holes: int) -> None:
    """Append batches, each after a number of offsets without records."""
    for hole in holes:
        world.act(lambda hole=hole: world.produce(2, hole))  # type: ignore[misc]
    world.commit()


def do(world: World, *acts: Callable[[], None]) -> None:
    for act in acts:
        world.act(act)


def recreate(world: World) -> None:
    world.delete()
    world.create()
    append(world, 0, 0, 0, 0)


def test_a_client_of_a_deleted_topic_gets_no_records_of_the_new_one() -> None:
    with endpoint(BROKER) as (world, live):
        deleted = live.topic_id()
        assert deleted is not None
        recreate(world)
        data, records = live.fetch(deleted, 4)
        assert (data.error, records) == (ErrorCode.unknown_topic_id, b"")
        created = live.topic_id()
        assert created not in {None, deleted}
    with endpoint(STORE) as (world, live):
        world.delete()
        world.show()
        live.ask_for_topics()  # it knows of no topic any more, and the archive is a new one
        recreate(world)
        do(world, world.retire, lambda: world.upload(1))
        world.pass_time(6)
        data, records = live.fetch(deleted, 2)
        assert (data.error, records) == (ErrorCode.unknown_topic_id, b"")


def test_no_offset_is_out_of_range_while_the_store_is_away() -> None:
    """Also not an offset that the leader refuses: the archive may have it."""
    with endpoint(BROKER) as (world, live):
        topic_id = live.topic_id()
        assert topic_id is not None
        world.set_store_away(is_away=True)
        assert live.fetch(topic_id, 50)[0].error is ErrorCode.kafka_storage_error
        world.set_store_away(is_away=False)
        assert live.fetch(topic_id, 50)[0].error is ErrorCode.not_leader_or_follower
        world.pass_time(10)
        assert live.fetch(topic_id, 50)[0].error is ErrorCode.offset_out_of_range


def test_what_is_lost_behind_a_compacted_segment_is_out_of_range() -> None:
    """No record is left up to the end of the archive, so the client would wait for ever."""
    with endpoint(STORE, batches=1, archived=0) as (world, live):
        append(world, 0, 3, 0, 0, 0)
        do(world, lambda: world.upload(1), world.lose)
        log, topic_id = world.log, live.topic_id()
        assert log is not None
        assert topic_id is not None
        assert (log.archive_end, log.start) == (7, 9), "[4, 7) has no records, and [7, 9) is lost"
        data, _ = live.fetch(topic_id, 4)
        assert data.error is ErrorCode.offset_out_of_range


def test_what_the_next_leader_still_has_is_not_out_of_range() -> None:
    """What the former one has told of its log start does not decide."""
    with endpoint(BROKER) as (world, live):
        topic_id, log = live.topic_id(), world.log
        assert topic_id is not None
        assert log is not None
        append(world, 0, 0)
        do(world, world.lose)
        assert log.archive_end < log.start
        assert live.fetch(topic_id, log.archive_end)[0].error is ErrorCode.offset_out_of_range
        world.move_leader(0)
        world.commit()
        data, _ = live.fetch(topic_id, log.archive_end)
        assert data.error is ErrorCode.not_leader_or_follower
        world.show()
        live.ask_for_topics()
        assert live.fetch(topic_id, log.archive_end)[1]


def test_archived_records_above_the_known_high_watermark_are_not_sent() -> None:
    """After an unclean election they are not part of the log."""
    with endpoint(STORE) as (world, live):
        topic_id, log = live.topic_id(), world.log
        assert topic_id is not None
        assert log is not None
        log.high_watermark = log.end = 6
        assert log.archive_end == 8
        data, records = live.fetch(topic_id, 4, most=1000)
        assert (data.error, data.high_watermark) == (NONE, 6)
        assert records == log.batches[2].data
        assert live.fetch(topic_id, 7)[0].error is ErrorCode.not_leader_or_follower
        world.pass_time(10)
        assert live.fetch(topic_id, 7)[0].error is ErrorCode.offset_out_of_range


def test_a_time_is_found_wherever_its_record_is_meanwhile() -> None:
    """Between the search in the archive and that at the leader, records are archived and deleted at
    the broker; and gc has deleted what the broker still has.
    """
    with endpoint(STORE) as (world, live):
        world.pass_time(10)
        time = world.now_ms()
        append(world, 0, 0, 0, 0)
        first = 16
        world.agenda = [*[lambda: None] * 2, lambda: world.upload(9), lambda: world.trim(1 << 20)]
        assert live.list_offset(time).offset == first
    with endpoint(STORE) as (world, live):
        do(world, world.collect, world.delete_objects)
        world.pass_time(70)
        assert live.list_offset(1).offset == 0
        assert live.list_offset(EARLIEST).offset == 0


def test_a_former_leader_that_is_cut_off_puts_no_client_out_of_range() -> None:
    """Its log ends before the client's position, which the next leader has."""
    with endpoint(BROKER) as (world, live):
        topic_id, log = live.topic_id(), world.log
        assert topic_id is not None
        assert log is not None
        world.cut_off()
        world.produce(3)
        world.commit()
        world.produce(2)
        position = log.high_watermark
        data, _ = live.fetch(topic_id, position)
        assert data.error is ErrorCode.not_leader_or_follower
        world.commit()
        world.pass_time(9)
        world.show()
        live.fetch(topic_id, position)
        live.run_threads(lists=False)
        assert live.fetch(topic_id, position)[1] == log.batches[-1].data
