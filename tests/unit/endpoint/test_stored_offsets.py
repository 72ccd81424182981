"""Committed offsets in the store: owners, lost answers, kills, and commits that share a write."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from sidetier.endpoint.groups.stored_offsets import (
    MAX_BYTES,
    GroupObjects,
    GroupTakenError,
    OwnedGroup,
    StoredGroup,
    StoredOffset,
    encode_group,
    parse_group,
)
from sidetier.segments.errors import (
    ArchiveConflictError,
    InvalidRequestError,
    MalformedObjectError,
    PreconditionFailedError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.segments.keys import parse_group_key
from sidetier.segments.offsets import LeaderEpoch, Offset, TopicPartition
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import RemoteStorage
from tests.harness.intercepted_store import InterceptedStore, KilledError, MortalStore, StoreCall
from tests.harness.made_archive import LAYOUT

TP = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
KEY = "_sidetier/prod-a/groups/g.json"


def at(offset: int, metadata: str = "", topic_id: str | None = None) -> StoredOffset:
    return StoredOffset(Offset(offset), LeaderEpoch(3), metadata, topic_id)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


Process = Callable[[RemoteStorage, str], GroupObjects]


@pytest.fixture
def process(executor: ThreadPoolExecutor) -> Process:
    """Return the objects as a process with this id sees them."""

    def start(store: RemoteStorage, owner: str) -> GroupObjects:
        return GroupObjects(store, LAYOUT, owner, f"host-{owner}", executor)

    return start


def stored(store: FakeStorage) -> StoredGroup:
    return parse_group(store.contents()[KEY], KEY)


def commit(group: OwnedGroup, offset: int, tp: TopicPartition = TP) -> None:
    group.commit({tp: at(offset)}).result(10)


def puts(store: FakeStorage) -> int:
    return sum(request.operation == "put" for request in store.requests)


# The object


def test_an_object_is_read_as_it_was_written() -> None:
    offsets = {
        TP: at(5, "übrig", "vPeOCWypqUOSepEvx0cbog"),
        OTHER: at(2**62),
        TopicPartition("a.b-c", 7): at(0, topic_id="AAAAAAAAAAAAAAAAAAAAAQ"),
    }
    group = StoredGroup("g", "owner", "host", 3, offsets)
    assert parse_group(encode_group(group), KEY) == group


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": 2}, "version 2"),
        ({"offsets": {"orders": {"x": [1, 2, ""]}}}, "not the offsets"),
        ({"offsets": {"orders": {"0": [1]}}}, "not the offsets"),
        ({"offsets": {"orders": {"0": [1, 2, "", "id", 3]}}}, "not the offsets"),
        ({"offsets": []}, "not the offsets"),
        ({"writes": None}, "not the offsets"),
    ],
)
def test_other_objects_are_refused_by_name(change: dict[str, object], text: str) -> None:
    document = json.loads(encode_group(StoredGroup("g", "owner", "host"))) | change
    with pytest.raises(MalformedObjectError, match=rf"groups/g\.json.*{text}"):
        parse_group(json.dumps(document).encode(), KEY)
    with pytest.raises(MalformedObjectError):
        parse_group(b"[]", KEY)


def test_an_object_from_before_topic_ids_were_stored() -> None:
    document = json.loads(encode_group(StoredGroup("g", "owner", "host")))
    document["offsets"] = {"orders": {"0": [5, 3, "text"]}}
    read = parse_group(json.dumps(document).encode(), KEY)
    assert read.offsets == {TP: at(5, "text", topic_id=None)}
    assert json.loads(encode_group(read)) == document


@pytest.mark.parametrize("name", ["g", "a/b", "../../x", "émile", " ", "%2F", "~", "a" * 200])
def test_keys_of_any_name(name: str, process: Process) -> None:
    store = FakeStorage()
    objects = process(store, "one")
    objects.take(name)
    (key,) = store.contents()
    assert parse_group_key(key, LAYOUT.groups_prefix()) == name
    assert list(objects.names()) == [name]


def test_other_keys_and_long_names(process: Process) -> None:
    for key in ("_sidetier/prod-a/drill.json", KEY + "x", KEY.replace("g.", "a/g.")):
        assert parse_group_key(key, LAYOUT.groups_prefix()) is None
    with pytest.raises(InvalidRequestError, match="too long"):
        process(FakeStorage(), "one").take("é" * 50)


# Owners


def test_commits_are_stored_before_their_answer_and_read_by_the_next_owner(
    process: Process,
) -> None:
    store = FakeStorage()
    first = process(store, "one").take("g")
    commit(first, 5)
    commit(first, 7, OTHER)
    assert stored(store).offsets == first.offsets == {TP: at(5), OTHER: at(7)}
    second = process(store, "two").take("g")
    assert (second.previous_owner, second.offsets) == ("one", {TP: at(5), OTHER: at(7)})
    assert process(store, "three").read("g") == stored(store)  # which takes nothing
    commit(second, 6)
    with pytest.raises(ArchiveConflictError, match=r"g\.json: .*taken by a process on host-two"):
        commit(first, 100)
    assert stored(store).offsets == {TP: at(6), OTHER: at(7)}


def test_a_group_whose_object_was_deleted_is_lost(process: Process) -> None:
    store = FakeStorage()
    group = process(store, "one").take("g")
    store.delete_object(KEY)
    with pytest.raises(ArchiveConflictError, match="was deleted"):
        commit(group, 5)


def test_the_owner_is_confirmed_with_one_small_request(process: Process) -> None:
    store, clock = FakeStorage(), [10.0]
    group = replace(process(store, "one"), clock=lambda: clock[0]).take("g")
    assert group.confirmed_at == 10
    clock[0] = 20
    before = len(store.requests)
    group.confirm().result(10)
    assert group.confirmed_at == 20
    assert [each.operation for each in store.requests[before:]] == ["head"]
    clock[0] = 30
    commit(group, 1)  # a write confirms it too
    assert group.confirmed_at == 30
    clock[0] = 40
    commit(group, 1)  # which needs no write
    with store.away(), pytest.raises(StoreUnavailableError):
        group.confirm().result(10)
    assert group.confirmed_at == 30


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_previous_owner_that_asks_learns_that_it_is_not_the_owner(
    process: Process, *, is_deleted: bool
) -> None:
    store = FakeStorage()
    group = process(store, "one").take("g")
    if is_deleted:
        store.delete_object(KEY)
    else:
        process(store, "two").take("g")
    with pytest.raises(GroupTakenError, match="deleted" if is_deleted else "host-two"):
        group.confirm().result(10)


def test_a_check_whose_own_late_write_has_changed_the_object(process: Process) -> None:
    store = FakeStorage()
    group = process(store, "one").take("g")
    store.fail("put", StoreTimeoutError("no answer"), after=True)
    with pytest.raises(StoreTimeoutError):
        commit(group, 5)
    group.confirm().result(10)
    assert group.offsets == stored(store).offsets == {TP: at(5)}


def test_a_lost_group_is_taken_back_once_its_object_no_longer_changes(process: Process) -> None:
    store = FakeStorage()
    first = process(store, "one")
    mine = first.take("g")
    theirs = process(store, "two").take("g")
    with pytest.raises(GroupTakenError) as lost:
        commit(mine, 1)
    commit(theirs, 2)
    with pytest.raises(GroupTakenError, match="host-two") as still_lost:
        first.take("g", lost.value)
    assert stored(store).owner == "two"
    again = first.take("g", still_lost.value)
    assert (again.previous_owner, again.offsets) == ("two", {TP: at(2)})
    with pytest.raises(GroupTakenError):
        commit(theirs, 3)


def test_a_lost_group_is_taken_back_at_once_if_its_object_was_deleted(process: Process) -> None:
    store = FakeStorage()
    objects = process(store, "one")
    mine = objects.take("g")
    process(store, "two").take("g")
    with pytest.raises(GroupTakenError) as lost:
        commit(mine, 1)
    store.delete_object(KEY)
    commit(objects.take("g", lost.value), 2)
    assert stored(store).owner == "one"


def test_of_two_processes_that_take_a_group_at_once_the_last_one_owns_it(
    process: Process,
) -> None:
    store = FakeStorage()
    rivals: list[OwnedGroup] = []
    store.race("put", lambda: rivals.append(process(store, "two").take("g")))
    mine = process(store, "one").take("g")
    assert (stored(store).owner, mine.previous_owner) == ("one", "two")
    with pytest.raises(ArchiveConflictError):
        commit(rivals[0], 1)
    commit(mine, 2)


# A store that fails


def test_commits_during_a_write_share_the_next_one(process: Process) -> None:
    store = FakeStorage()
    group = process(store, "one").take("g")
    before = puts(store)
    with store.hold("put"):
        first = group.commit({TP: at(1)})
        rest = [group.commit({TP: at(n), OTHER: at(n)}) for n in range(2, 50)]
        assert not first.done()
    for result in (first, *rest):
        result.result(10)
    assert puts(store) - before == 2
    assert stored(store).offsets == {TP: at(49), OTHER: at(49)}
    commit(group, 49)  # an idle consumer commits the same position again
    assert puts(store) - before == 2


def test_a_store_that_is_away(process: Process) -> None:
    store = FakeStorage()
    group = process(store, "one").take("g")
    commit(group, 1)
    with store.away(), pytest.raises(StoreUnavailableError):
        commit(group, 2)
    assert group.offsets == {TP: at(1)}
    commit(group, 3, OTHER)
    assert stored(store).offsets == group.offsets == {TP: at(1), OTHER: at(3)}


@pytest.mark.parametrize("after", [True, False])
def test_a_write_whose_answer_is_lost(process: Process, *, after: bool) -> None:
    store = FakeStorage()
    group = process(store, "one").take("g")
    store.fail("put", StoreTimeoutError("no answer"), after=after)
    with pytest.raises(StoreTimeoutError):
        commit(group, 5)
    commit(group, 6, OTHER)
    expected = {TP: at(5), OTHER: at(6)} if after else {OTHER: at(6)}
    assert stored(store).offsets == group.offsets == expected


def test_a_write_that_the_retry_layer_had_carried_out_before(process: Process) -> None:
    store = FakeStorage()
    group = process(store, "one").take("g")
    store.fail("put", PreconditionFailedError("its own earlier attempt"), after=True)
    commit(group, 5)
    assert stored(store).offsets == {TP: at(5)}


class LateWrite(InterceptedStore):
    """Answers the next conditional put with a timeout once `is_slow` is set, and keeps it."""

    is_slow = False
    late: StoreCall | None = None

    def intercept(self, call: StoreCall) -> object:
        if call.operation == "put" and self.is_slow:
            self.is_slow, self.late = False, call
            raise StoreTimeoutError("no answer")
        return super().intercept(call)

    def carry_out(self, store: FakeStorage) -> None:
        """Carry out the put that was kept, which must fail."""
        assert self.late is not None
        with pytest.raises(PreconditionFailedError):
            self.late.effect(store)


@pytest.mark.parametrize("newer", [3, 1], ids=["other offset", "offset that is stored already"])
def test_a_late_write_cannot_replace_a_newer_commit(process: Process, newer: int) -> None:
    store = FakeStorage()
    slow = LateWrite(store)
    group = process(slow, "one").take("g")
    commit(group, 1)
    slow.is_slow = True
    with pytest.raises(StoreTimeoutError):
        commit(group, 2)
    commit(group, newer)
    slow.carry_out(store)
    assert stored(store).offsets == group.offsets == {TP: at(newer)}
    before = puts(store)
    commit(group, newer)  # nothing is open any more
    assert puts(store) == before


def test_a_late_write_cannot_replace_what_the_same_process_takes_again(process: Process) -> None:
    store = FakeStorage()
    slow = LateWrite(store)
    objects = process(slow, "one")
    group = objects.take("g")
    slow.is_slow = True
    with pytest.raises(StoreTimeoutError):
        commit(group, 2)
    again = objects.take("g")  # after it was removed from memory
    slow.carry_out(store)
    assert stored(store).offsets == again.offsets == {}


def test_an_object_that_would_be_too_large(process: Process) -> None:
    store = FakeStorage()
    group = process(store, "one").take("g")
    rows = {TopicPartition("orders", n): at(n, "x" * 4096) for n in range(MAX_BYTES // 4096)}
    with pytest.raises(InvalidRequestError, match="above"):
        group.commit(rows).result(10)
    commit(group, 1)
    assert stored(store).offsets == {TP: at(1)}


def test_a_commit_that_is_too_large_fails_alone(process: Process) -> None:
    """The others that wait for the same write are stored."""
    store = FakeStorage()
    group = process(store, "one").take("g")
    large = {TopicPartition("large", n): at(n, "x" * 4096) for n in range(MAX_BYTES // 4096)}
    with store.hold("put"):
        first = group.commit({TP: at(1)})
        second, refused, third = map(group.commit, ({TP: at(2)}, large, {OTHER: at(3)}))
        with pytest.raises(InvalidRequestError, match="above"):
            refused.result(10)
    for result in (first, second, third):
        result.result(10)
    assert stored(store).offsets == group.offsets == {TP: at(2), OTHER: at(3)}


def test_memory_of_offsets_is_that_of_the_stored_ones_after_a_failure(process: Process) -> None:
    store = FakeStorage()
    group = process(store, "one").take("g")
    before, growth = group.memory, group.growth({TP: at(1)})
    with store.away(), pytest.raises(StoreUnavailableError):
        commit(group, 1)
    assert group.memory == before
    commit(group, 1)
    assert group.memory == before + growth > before
    assert group.growth({TP: at(2)}) == 0


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("lives", range(6))
def test_a_kill_at_any_request_leaves_what_was_answered(
    process: Process, lives: int, *, after: bool
) -> None:
    """The first process takes the group and commits 1, 2 and 3: one get and four puts."""
    store = FakeStorage()
    answered = 0
    try:
        group = process(MortalStore(store, lives, after=after), "one").take("g")
        for offset in (1, 2, 3):
            commit(group, offset)
            answered = offset
    except KilledError:
        pass
    assert (answered == 3) is (lives >= 5)
    heir = process(store, "two").take("g")
    offset = heir.offsets.get(TP, at(0)).offset
    assert offset in {answered, answered + 1 if after else answered}
    commit(heir, 9)
    assert stored(store).offsets == {TP: at(9)}
