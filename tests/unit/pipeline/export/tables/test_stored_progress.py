"""Progress of exports in the files of Hudi and Iceberg tables, without Spark."""

import gzip
import io
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fastavro
import pytest

from sidetier.pipeline.export.errors import LostProgressError, NewerStateError
from sidetier.pipeline.export.sinks.tables.commit_metadata import (
    STATE_TAG,
    Progress,
    WholeState,
    to_properties,
)
from sidetier.pipeline.export.sinks.tables.stored_progress import hudi_progress, iceberg_progress
from sidetier.pipeline.export.state import NO_TAIL, Offsets, Tail
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.offsets import Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import RemoteStorage

CLUSTER = "prod-a"
TP = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "HoodieCommitMetadata",
    "fields": [
        {"name": "extraMetadata", "type": ["null", {"type": "map", "values": "string"}]},
        {"name": "version", "type": ["null", "int"]},
    ],
}
Properties = Mapping[str, str]


def at(
    offset: int,
    commit: str = "a",
    cluster: str = CLUSTER,
    previous: str | None = None,
    topic_id: str | None = None,
) -> Properties:
    """The properties of a commit that has exported up to an offset."""
    return to_properties(
        Progress(
            cluster,
            IsolationLevel.READ_COMMITTED,
            {TP: Offset(offset), OTHER: Offset(7)},
            {},
            commit,
            tail=NO_TAIL if topic_id is None else Tail(topic_ids={"orders": topic_id}),
            previous=previous,
        )
    )


def changed(offset: int, whole: str) -> Properties:
    """The properties of a commit that follows `whole` and has only the changes since."""
    before: Offsets = {TP: Offset(0), OTHER: Offset(7)}
    return to_properties(
        Progress(
            CLUSTER,
            IsolationLevel.READ_COMMITTED,
            {**before, TP: Offset(offset)},
            {},
            "changed",
            previous=whole,
            whole=WholeState(whole, before, NO_TAIL, 1),
        )
    )


def put(store: RemoteStorage, key: str, data: bytes | str) -> None:
    store.put_object(key, BytesBody(data.encode() if isinstance(data, str) else data))


class HudiTable:
    def __init__(self, version: int = 9) -> None:
        self.store = FakeStorage()
        self.version = version
        put(self.store, ".hoodie/hoodie.properties", f"#\nhoodie.table.version={version}\n")

    def commit(
        self, instant: int, properties: Properties | None, action: str = "commit", state: str = ""
    ) -> None:
        document = {"extraMetadata": properties, "version": 1}
        if self.version < 8:
            put(self.store, f".hoodie/{instant}.{action}{state}", json.dumps(document))
            return
        data = io.BytesIO()
        fastavro.writer(data, SCHEMA, [document])
        completed = "" if state else f"_{instant + 5}"
        put(self.store, f".hoodie/timeline/{instant}{completed}.{action}{state}", data.getvalue())


@pytest.mark.parametrize("version", [6, 8, 9])
def test_last_completed_commit_of_an_export_counts(version: int) -> None:
    table = HudiTable(version)
    table.commit(20260101000000000, at(10))
    table.commit(20260102000000000, at(20, "b", previous="a"))
    table.commit(20260103000000000, None)
    table.commit(20260104000000000, None, action="clean")
    table.commit(20260105000000000, at(90, "c"), state=".inflight")
    put(table.store, ".hoodie/metadata/.hoodie/timeline/20260106_20260107.deltacommit", b"x")
    assert hudi_progress(table.store, CLUSTER).next_offsets == {TP: 20, OTHER: 7}


def test_commits_with_changes_only_are_completed_from_an_earlier_one() -> None:
    table = HudiTable()
    table.commit(20260101000000000, at(0))
    table.commit(20260102000000000, changed(30, whole="a"), action="deltacommit")
    assert hudi_progress(table.store, CLUSTER).next_offsets == {TP: 30, OTHER: 7}


def test_hudi_table_without_an_export_is_refused() -> None:
    with pytest.raises(LostProgressError, match=r"hoodie\.properties is missing"):
        hudi_progress(FakeStorage(), CLUSTER)
    table = HudiTable()
    table.commit(20260101000000000, {"other": "x"})
    with pytest.raises(LostProgressError, match=r"none of the 1 commits in \.hoodie/timeline/"):
        hudi_progress(table.store, CLUSTER)
    table.commit(20260102000000000, at(10, cluster="prod-b"))
    with pytest.raises(LostProgressError, match="cluster prod-b"):
        hudi_progress(table.store, CLUSTER)


@pytest.mark.parametrize("data", [b"", b"Obj\x01\x00", b"{", b"[1]", b'{"extraMetadata": 5}'])
def test_damaged_hudi_commit_is_an_error(data: bytes) -> None:
    table = HudiTable()
    table.commit(20260101000000000, at(10))
    key = ".hoodie/timeline/20260102000000000_20260102000000005.commit"
    put(table.store, key, data)
    with pytest.raises(MalformedObjectError, match=key):
        hudi_progress(table.store, CLUSTER)


def metadata(*snapshots: Properties, staged: int = 0, tag: int | None = None) -> str:
    """The metadata of a table with these snapshots, oldest first; the last ones are not current."""
    rows = [
        {
            "snapshot-id": number,
            **({"parent-snapshot-id": number - 1} if number > 1 else {}),
            "summary": dict(properties),
        }
        for number, properties in enumerate(snapshots, start=1)
    ]
    refs: dict[str, Any] = {"main": {"snapshot-id": len(rows) - staged, "type": "branch"}}
    if tag is not None:
        refs[STATE_TAG] = {"snapshot-id": tag, "type": "tag"}
    return json.dumps(
        {"current-snapshot-id": len(rows) - staged or -1, "snapshots": rows, "refs": refs}
    )


def table_of(files: Mapping[str, str | bytes], seconds: int = 0) -> FakeStorage:
    """A table whose metadata files were stored in this order, with some seconds between them."""
    now = itertools.count(1_700_000_000_000, seconds * 1000)
    store = FakeStorage(now_ms=lambda: next(now))
    for name, data in files.items():
        put(store, f"metadata/{name}", data)
    put(store, "metadata/version-hint.text", "1")
    put(store, "metadata/snap-1-1-x.avro", b"x")
    return store


def test_highest_number_of_a_hadoop_catalog_is_current() -> None:
    store = table_of(
        {
            "v9.metadata.json": metadata(at(10)),
            "v10.metadata.json": metadata(at(10), {}, at(20, "b", previous="a"), {}, {}),
        }
    )
    assert iceberg_progress(store, CLUSTER).next_offsets == {TP: 20, OTHER: 7}


def test_staged_snapshot_does_not_count() -> None:
    store = table_of({"v1.metadata.json": metadata(at(10), at(20, "b", previous="a"), staged=1)})
    assert iceberg_progress(store, CLUSTER).next_offsets == {TP: 10, OTHER: 7}


@pytest.mark.parametrize(
    ("suffix", "encode"),
    [(".metadata.json", str.encode), (".gz.metadata.json", lambda t: gzip.compress(t.encode()))],
)
def test_lowest_offsets_of_the_files_that_may_be_current_count(
    suffix: str, encode: Callable[[str], bytes]
) -> None:
    """Only the catalog knows whether the newest file, or which of two, was committed."""
    first, second, third = (
        metadata(at(10)),
        metadata(at(20, "b")),
        metadata(at(30, "c")),
    )
    files = {f"00001-x{suffix}": encode(first), f"00002-y{suffix}": encode(second)}
    assert iceberg_progress(table_of(files), CLUSTER).next_offsets == {TP: 10, OTHER: 7}
    files[f"00003-z{suffix}"] = encode(third)
    assert iceberg_progress(table_of(files), CLUSTER).next_offsets == {TP: 20, OTHER: 7}
    files[f"00002-refused{suffix}"] = encode(metadata(at(15, "d")))
    assert iceberg_progress(table_of(files), CLUSTER).next_offsets == {TP: 15, OTHER: 7}


@pytest.mark.parametrize("name", ["{:05d}-{}", "v{}"])
def test_table_that_was_created_again_in_the_location_of_a_dropped_one_is_refused(
    name: str,
) -> None:
    """A drop without PURGE leaves the files of the dropped table, which have higher numbers."""
    files = {
        f"{name.format(number, uuid)}.metadata.json": metadata(at(offset))
        for number, uuid, offset in (
            (11, "dropped", 900_000),
            (12, "dropped", 1_000_000),
            (1, "new", 50),
            (2, "new", 100),
        )
    }
    with pytest.raises(LostProgressError, match=r"2.* is newer than .*12.*, which has a higher"):
        iceberg_progress(table_of(files, seconds=1), CLUSTER)


def test_metadata_files_of_the_same_second_are_told_by_their_numbers() -> None:
    files = {f"{number:05d}-x.metadata.json": metadata(at(number * 10)) for number in (3, 2, 1)}
    assert iceberg_progress(table_of(files), CLUSTER).next_offsets == {TP: 20, OTHER: 7}


def test_topic_ids_are_those_of_every_file_that_was_read() -> None:
    old, new = metadata(at(10, topic_id="old")), metadata(at(10, "b", topic_id="new"))
    files = {"00001-x.metadata.json": old, "00002-y.metadata.json": old}
    assert iceberg_progress(table_of(files), CLUSTER).tail.topic_ids == {"orders": "old"}
    files["00001-x.metadata.json"] = metadata(at(10))
    assert iceberg_progress(table_of(files), CLUSTER).tail.topic_ids == {}
    files["00001-x.metadata.json"] = new
    with pytest.raises(LostProgressError, match="two ids of topic orders, old and new"):
        iceberg_progress(table_of(files), CLUSTER)
    table = HudiTable()
    table.commit(20260101000000000, at(10, topic_id="old"))
    assert hudi_progress(table.store, CLUSTER).tail.topic_ids == {"orders": "old"}


def test_tagged_snapshot_has_the_whole_state_although_others_have_expired() -> None:
    document = json.loads(metadata(at(0), {}, changed(30, whole="a"), tag=1))
    del document["snapshots"][1]
    store = table_of({"v1.metadata.json": json.dumps(document)})
    assert iceberg_progress(store, CLUSTER).next_offsets == {TP: 30, OTHER: 7}
    del document["refs"][STATE_TAG]
    store = table_of({"v1.metadata.json": json.dumps(document)})
    with pytest.raises(LostProgressError, match="has expired"):
        iceberg_progress(store, CLUSTER)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ([], "there is no Iceberg table"),
        (["v1.metadata.json", "00001-x.metadata.json"], "two catalogs"),
        (["0a1b.metadata.json"], "has no number"),
    ],
)
def test_table_whose_current_metadata_is_unknown_is_refused(
    names: Sequence[str], reason: str
) -> None:
    store = table_of(dict.fromkeys(names, metadata(at(10))))
    with pytest.raises(LostProgressError, match=reason):
        iceberg_progress(store, CLUSTER)


def test_iceberg_table_without_an_export_is_refused() -> None:
    with pytest.raises(LostProgressError, match="none of the snapshots in metadata/v1"):
        iceberg_progress(table_of({"v1.metadata.json": metadata({})}), CLUSTER)
    with pytest.raises(LostProgressError, match="cluster prod-b"):
        iceberg_progress(table_of({"v1.metadata.json": metadata(at(1, cluster="prod-b"))}), CLUSTER)


@pytest.mark.parametrize("data", ["", "{", "[]", "{}", '{"snapshots": 5}', b"\x1f\x8bx"])
def test_damaged_iceberg_metadata_is_an_error(data: str | bytes) -> None:
    with pytest.raises(MalformedObjectError, match=r"metadata/v1\.metadata\.json"):
        iceberg_progress(table_of({"v1.metadata.json": data}), CLUSTER)


def test_tables_of_later_versions_are_refused() -> None:
    with pytest.raises(NewerStateError, match=r"hoodie\.table\.version is 10"):
        hudi_progress(HudiTable(10).store, CLUSTER)
    later = metadata(at(10)).replace("{", '{"format-version": 4, ', 1)
    with pytest.raises(NewerStateError, match="format-version is 4"):
        iceberg_progress(table_of({"v1.metadata.json": later}), CLUSTER)
