"""Log dirs, the layout object of a store, stored segments and the `_metadata` cache."""

from collections.abc import Iterator

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem
from pyfakefs.fake_filesystem_unittest import Patcher

from sidetier.archive.objects.layout import LayoutNote, read_note, write_or_check_note
from sidetier.archive.objects.segment import derive_next_offset
from sidetier.segments.errors import ConfigurationError, MalformedObjectError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.notes import NEXT_OFFSET_KEY
from sidetier.segments.offsets import BaseOffset, BrokerId, Offset, TopicPartition
from sidetier.segments.properties import MetaProperties
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import PutOptions
from sidetier.uploader.archive.metadata_cache import MetadataCache, _Version
from sidetier.uploader.watching.disk import LogDirPartitions, find_partitions, list_names
from sidetier.uploader.watching.log_dirs import LogDirs
from tests.harness.broker_segments import BrokerSegment, closed_segments
from tests.harness.daemons import LAYOUT, key_of
from tests.harness.intercepted_store import InterceptedStore, StoreCall

A, B = TopicPartition("a", 0), TopicPartition("b", 7)
HEX = "0123456789abcdef" * 2


@pytest.fixture
def fs() -> Iterator[FakeFilesystem]:
    with Patcher() as patcher:
        assert patcher.fs is not None
        yield patcher.fs


# -- log dirs -------------------------------------------------------------------------------------


def everything(_: str) -> bool:
    return True


def test_only_live_partitions_are_found(fs: FakeFilesystem) -> None:
    for name in (
        "a-0",
        "b-7",
        f"a-1.{HEX}-delete",
        f"a-2.{HEX}-future",
        f"a-3.{HEX}-stray",
        "__cluster_metadata-0",
        "no-partition",
        "a-",
        "lost+found",
        "a-007",
    ):
        fs.create_dir(f"/logs/{name}")
    fs.create_file("/logs/c-0")
    found = find_partitions(["/logs"], everything)
    assert found == LogDirPartitions({A: "/logs/a-0", B: "/logs/b-7"})


def test_topic_that_is_not_selected_is_not_found(fs: FakeFilesystem) -> None:
    fs.create_dir("/logs/a-0")
    fs.create_dir("/logs/b-7")
    found = find_partitions(["/logs"], lambda topic: topic == "b")
    assert found.directories == {B: "/logs/b-7"}


def test_missing_log_dir_does_not_hide_the_others(fs: FakeFilesystem) -> None:
    fs.create_dir("/2/b-7")
    found = find_partitions(["/1", "/2"], everything)
    assert found.directories == {B: "/2/b-7"}
    (problem,) = found.problems
    assert problem.startswith("log dir /1 cannot be read, and nothing in it is archived: No such")


def test_log_dir_of_another_broker_is_not_read(fs: FakeFilesystem) -> None:
    """The same holds for an empty mount point, which has no meta.properties."""
    ours = MetaProperties(BrokerId(1), 1, "kafka-id", "kraft")
    for number in (1, 2, 3):
        fs.create_dir(f"/{number}/b-{number}")
    fs.create_file("/1/meta.properties", contents="version=1\nnode.id=1\ncluster.id=kafka-id\n")
    fs.create_file("/2/meta.properties", contents="version=1\nnode.id=2\ncluster.id=kafka-id\n")
    found = find_partitions(["/1", "/2", "/3"], everything, ours)
    assert list(found.directories.values()) == ["/1/b-1"]
    other, empty = found.problems
    assert "/2/meta.properties is that of broker 2 of cluster kafka-id, not of broker 1" in other
    assert "log dir /3 cannot be read" in empty


def test_symbolic_link_within_the_file_system_is_followed(fs: FakeFilesystem) -> None:
    """As the broker does; the name of the link names the partition."""
    fs.create_dir("/logs")
    fs.create_dir("/big/whatever")
    fs.create_symlink("/logs/a-0", "/big/whatever")
    assert find_partitions(["/logs"], everything) == LogDirPartitions({A: "/logs/a-0"})


def break_link(fs: FakeFilesystem, how: str) -> None:
    if how == "another file system":
        fs.add_mount_point("/other")
        fs.create_dir("/other/a-0")
    elif how == "a file":
        fs.create_file("/other/a-0")
    fs.create_symlink("/logs/a-0", "/other/a-0")


REFUSED_LINKS = {
    "another file system": "on another file system than its log dir",
    "a file": "which is not a directory",
    "nothing": "which cannot be reached: No such file",
}


@pytest.mark.parametrize("how", REFUSED_LINKS)
def test_link_that_is_not_followed_is_reported_once(
    fs: FakeFilesystem, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fs.create_dir("/logs/b-7")
    break_link(fs, how)
    dirs = LogDirs(["/logs"], everything)
    dirs.rescan()
    assert set(dirs.partitions()) == {B}
    reason = dirs.refusal(A)
    assert reason is not None
    assert reason.startswith("/logs/a-0 is a symbolic link to /other/a-0")
    assert REFUSED_LINKS[how] in reason
    assert dirs.problems == (reason,)
    dirs.rescan()
    assert capsys.readouterr().out.count("partition.refused") == 1, "told once"
    fs.remove_object("/logs/a-0")
    fs.create_dir("/logs/a-0")
    assert dirs.resolve("/logs/a-0") == A
    assert dirs.directory(A) == "/logs/a-0"
    assert not dirs.problems


def test_hint_for_a_link_that_is_not_followed_records_the_refusal(fs: FakeFilesystem) -> None:
    fs.create_dir("/logs/a-0")
    dirs = LogDirs(["/logs"], everything)
    dirs.rescan()
    fs.remove_object("/logs/a-0")
    break_link(fs, "another file system")
    assert dirs.resolve("/logs/a-0") == A
    assert dirs.directory(A) is None
    assert dirs.refusal(A) is not None


def test_partitions_of_an_unreadable_log_dir_stay_known(fs: FakeFilesystem) -> None:
    fs.create_dir("/1/a-0")
    fs.create_dir("/2")
    dirs = LogDirs(["/1", "/2"], everything)
    dirs.rescan()
    fs.rename("/1", "/away")
    for _ in range(2):
        dirs.rescan()
        assert dirs.resolve("/1/a-0") == A
        assert dirs.directory(A) == "/1/a-0"
        assert "log dir /1 cannot be read" in dirs.problems[0]
    fs.create_dir("/2/a-0")
    dirs.rescan()
    assert dirs.directory(A) == "/2/a-0", "a log dir that can be read knows better"
    fs.remove_object("/2/a-0")
    fs.rename("/away", "/1")
    fs.remove_object("/1/a-0")
    dirs.rescan()
    assert dirs.directory(A) is None
    assert dirs.problems == ()


def test_hint_before_a_log_dir_is_known_to_be_gone_loses_no_partition(fs: FakeFilesystem) -> None:
    fs.create_dir("/1/a-0")
    dirs = LogDirs(["/1"], everything)
    dirs.rescan()
    fs.rename("/1", "/away")
    assert dirs.resolve("/1/a-0") == A
    assert dirs.directory(A) == "/1/a-0"


def test_missing_directory_has_no_names(fs: FakeFilesystem) -> None:
    fs.create_file("/logs/a-0")
    assert list_names("/logs/a-0") == []
    assert list_names("/nowhere") == []


def test_hint_finds_and_loses_a_partition(fs: FakeFilesystem) -> None:
    fs.create_dir("/logs")
    dirs = LogDirs(["/logs"], everything)
    assert dirs.directory(A) is None
    fs.create_dir("/logs/a-0")
    assert dirs.resolve("/logs/a-0") == A
    assert dirs.directory(A) == "/logs/a-0"
    fs.remove_object("/logs/a-0")
    assert dirs.resolve("/logs/a-0") == A
    assert dirs.directory(A) is None


def test_moved_partition_is_not_lost_with_its_old_directory(fs: FakeFilesystem) -> None:
    fs.create_dir("/1")
    fs.create_dir("/2/a-0")
    dirs = LogDirs(["/1", "/2"], everything)
    dirs.rescan()
    assert dirs.resolve("/1/a-0") == A  # the deletion of the old directory arrives as a hint, too
    assert dirs.directory(A) == "/2/a-0"
    assert set(dirs.partitions()) == {A}


@pytest.mark.parametrize("name", [f"a-0.{HEX}-delete", "x", "unwanted-0"])
def test_hint_for_another_directory_is_ignored(fs: FakeFilesystem, name: str) -> None:
    fs.create_dir(f"/logs/{name}")
    dirs = LogDirs(["/logs"], lambda topic: topic != "unwanted")
    assert dirs.resolve(f"/logs/{name}") is None
    assert not list(dirs.partitions())


# -- the layout object -----------------------------------------------------------------------------


def test_first_start_writes_the_layout_object(store: FakeStorage) -> None:
    layout = ArchiveLayout("c", 5)
    assert read_note(store, layout) is None
    write_or_check_note(store, layout, "kafka-id")
    assert read_note(store, layout) == LayoutNote(5, "kafka-id")
    write_or_check_note(store, layout, "kafka-id")
    write_or_check_note(store, layout, None)
    assert store.count("put") == 1


@pytest.mark.parametrize(
    ("layout", "kafka_id", "message"),
    [
        (ArchiveLayout("c", 6), "kafka-id", "prefix_entropy_bits is 6.*has keys with 5"),
        (ArchiveLayout("c", 5), "another", "Kafka cluster kafka-id.*another"),
    ],
)
def test_disagreement_with_the_layout_object_is_refused_before_any_write(
    store: FakeStorage, layout: ArchiveLayout, kafka_id: str, message: str
) -> None:
    write_or_check_note(store, ArchiveLayout("c", 5), "kafka-id")
    with pytest.raises(ConfigurationError, match=message):
        write_or_check_note(store, layout, kafka_id)
    assert store.count("put") == 1


def test_zero_and_negative_prefix_bits_are_equal(store: FakeStorage) -> None:
    write_or_check_note(store, ArchiveLayout("c", 0), None)
    write_or_check_note(store, ArchiveLayout("c", -1), None)


def test_second_of_two_first_starts_reads_the_layout_object_of_the_first(
    store: FakeStorage,
) -> None:
    class FirstGetTooEarly(InterceptedStore):
        """Answer the GETs before the first PUT as if the store were still empty."""

        has_put = False

        def intercept(self, call: StoreCall) -> object:
            self.has_put = self.has_put or call.operation == "put"
            return call.effect(self.store if self.has_put else FakeStorage())

    write_or_check_note(store, ArchiveLayout("c", 5), "kafka-id")
    with pytest.raises(ConfigurationError, match="has keys with 5"):
        write_or_check_note(FirstGetTooEarly(store), ArchiveLayout("c", 6), "kafka-id")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"bits": "x"}', b"\xff"])
def test_malformed_layout_object_is_named_by_its_key(store: FakeStorage, data: bytes) -> None:
    store.put_object(LAYOUT.layout_key(), BytesBody(data))
    with pytest.raises(MalformedObjectError, match=LAYOUT.layout_key()):
        write_or_check_note(store, LAYOUT, None)


# -- stored segments ------------------------------------------------------------------------------


@pytest.mark.parametrize("segment", closed_segments()[::4], ids=str)
@pytest.mark.parametrize("indexes", [True, False], ids=["indexes", "none"])
def test_next_offset_of_a_pinterest_segment_is_read_from_its_log(
    store: FakeStorage, segment: BrokerSegment, *, indexes: bool
) -> None:
    store.put_object(key_of(A, segment.base), BytesBody(segment.read(FileKind.LOG)))
    if indexes:
        for kind in (FileKind.INDEX, FileKind.TIMEINDEX):
            store.put_object(key_of(A, segment.base, kind), BytesBody(segment.read(kind)))
    found = derive_next_offset(store, LAYOUT, A, segment.base)
    if segment.directory.name != "compacted-0":
        assert found == segment.next_base
    assert segment.base < found <= segment.next_base


def test_next_offset_in_the_object_metadata_saves_the_read(store: FakeStorage) -> None:
    store.put_object(key_of(A, 0), BytesBody(b"x"), PutOptions(metadata={NEXT_OFFSET_KEY: "77"}))
    assert derive_next_offset(store, LAYOUT, A, BaseOffset(0)) == Offset(77)
    assert store.count("get") + store.count("stream") == 0


# -- the _metadata cache --------------------------------------------------------------------------


def test_cache_is_bounded_in_bytes_and_evicts_the_least_recently_used() -> None:
    cache = MetadataCache(10)
    for name in "abc":
        cache.put(TopicPartition(name, 0), _Version(b"1234", "e"))
        cache.get(TopicPartition("a", 0))
    assert cache.get(TopicPartition("a", 0)) is not None
    assert cache.get(TopicPartition("b", 0)) is None
    assert cache.get(TopicPartition("c", 0)) is not None


def test_entry_larger_than_the_bound_is_kept_alone() -> None:
    cache = MetadataCache(10)
    cache.put(A, _Version(b"1", "e"))
    cache.put(B, _Version(b"x" * 100, "e"))
    assert cache.get(A) is None
    assert cache.get(B) is not None
    cache.pop(B)
    cache.put(A, _Version(b"12345678", "e"))
    assert cache.get(A) is not None


def test_replaced_entry_counts_only_its_new_size() -> None:
    cache = MetadataCache(10)
    for _ in range(5):
        cache.put(A, _Version(b"12345", "e"))
    cache.put(B, _Version(b"12345", "e"))
    assert cache.get(A) is not None
    assert cache.get(B) is not None
