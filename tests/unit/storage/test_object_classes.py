"""Classes of objects, and their tags on S3."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from pydantic import ValidationError

from sidetier.config.storage import S3Config
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.offsets import BaseOffset, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.encrypted_format import marker_key
from sidetier.storage.object_classes import ObjectClass, keeps_default_class, object_class
from sidetier.storage.port import IfAbsent, UnfinishedUpload
from sidetier.storage.s3 import S3Storage
from sidetier.storage.s3_client import make_client
from sidetier.storage.settings import MIB, REWRITTEN, AttemptDeadline, S3Settings
from tests.harness.stores import moto_server

TP = TopicPartition("orders", 3)
LAYOUT = ArchiveLayout("prod-a", 5)


@pytest.mark.parametrize("bits", [0, 5])
def test_metadata_never_has_the_class_of_segments(bits: int) -> None:
    layout = ArchiveLayout("prod-a", bits)
    for kind in FileKind:
        assert object_class(layout.object_key(TP, BaseOffset(0), kind)) is ObjectClass.SEGMENT
    never_expired = [
        layout.watermark_key(TP),
        layout.metadata_key(TP),
        layout.epoch_checkpoint_key(TP),
        layout.layout_key(),
        layout.key_fingerprint_key("k1"),
        layout.start_key(TP),
        layout.gap_key(TP, Offset(0), Offset(5)),
        layout.chapter_key(TP, "id", Offset(0), Offset(5)),
    ]
    assert {object_class(key) for key in never_expired} == {ObjectClass.METADATA}
    for prefix in (layout.quarantine_prefix(TP), layout.retired_prefix(TP)):
        moved = f"{prefix}x/{0:020d}.log"
        assert object_class(moved) is ObjectClass.QUARANTINE
        assert object_class(marker_key(moved, 5000)) is ObjectClass.QUARANTINE


def test_a_marker_has_the_class_of_its_log_and_the_default_storage_class() -> None:
    log = LAYOUT.object_key(TP, BaseOffset(0), FileKind.LOG)
    assert object_class(marker_key(log, 5000)) is ObjectClass.SEGMENT
    mark = LAYOUT.watermark_key(TP)
    kept = {key: keeps_default_class(key, REWRITTEN) for key in (log, marker_key(log, 5000), mark)}
    assert list(kept.values()) == [False, True, True]


def test_class_tag_leaves_room_for_nine_tags() -> None:
    tags = {f"t{number}": "x" for number in range(10)}
    assert S3Config(tags=tags).class_tag is False
    with pytest.raises(ValidationError, match="at most 10 tags"):
        S3Config(tags=tags, class_tag=True)


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Settings]:
    with moto_server() as settings:
        make_client(settings, AttemptDeadline()).create_bucket(Bucket="classes")
        yield settings


def store_of(moto: S3Settings, **changes: object) -> S3Storage:
    return S3Storage("classes", "p", replace(moto, **changes))  # type: ignore[arg-type]


def tags_of(moto: S3Settings, key: str) -> dict[str, str]:
    client = make_client(moto, AttemptDeadline())
    answer = client.get_object_tagging(Bucket="classes", Key=f"p/{key}")
    return {tag["Key"]: tag["Value"] for tag in answer["TagSet"]}


def test_every_way_of_writing_an_object_tags_it_with_its_class(moto: S3Settings) -> None:
    settings = {"class_tag": True, "tags": (("team", "data"),), "multipart_threshold": 5 * MIB}
    store = store_of(moto, **settings)
    key = LAYOUT.object_key(TP, BaseOffset(0), FileKind.LOG)
    segment = {"team": "data", "sidetier-class": "segment"}
    for size in (10, MIB, 6 * MIB):
        store.put_object(key, BytesBody(b"x" * size))
        assert tags_of(moto, key) == segment
    store.put_object(LAYOUT.watermark_key(TP), BytesBody(b"x"))
    assert tags_of(moto, LAYOUT.watermark_key(TP))["sidetier-class"] == "metadata"
    moved = f"{LAYOUT.quarantine_prefix(TP)}x/{0:020d}.log"
    for condition in (None, IfAbsent()):
        store.delete_object(moved)
        store.copy_object(key, moved, condition=condition)
        assert tags_of(moto, moved)["sidetier-class"] == "quarantine"


def test_without_the_setting_no_class_is_tagged(moto: S3Settings) -> None:
    store = store_of(moto)
    store.put_object("a.log", BytesBody(b"x"))
    assert tags_of(moto, "a.log") == {}


def test_unfinished_uploads_are_listed_and_aborted(moto: S3Settings) -> None:
    store = store_of(moto)
    client = make_client(moto, AttemptDeadline())
    for key in ("p/b.log", "p/a.log", "other/a.log"):
        client.create_multipart_upload(Bucket="classes", Key=key)
    uploads = sorted(store.unfinished_uploads(""), key=lambda upload: upload.key)
    assert [upload.key for upload in uploads] == ["a.log", "b.log"]
    assert all(upload.started_ms > 1_200_000_000_000 for upload in uploads)
    for _ in range(2):
        store.abort_upload(uploads[0])
    assert list(store.unfinished_uploads("")) == uploads[1:]
    store.abort_upload(UnfinishedUpload("b.log", "missing", 0))


def test_a_thousand_objects_are_deleted_in_one_request(moto: S3Settings) -> None:
    store = store_of(moto)
    for number in range(20):
        store.put_object(f"many/{number}", BytesBody(b"x"))
    store.delete_objects([f"many/{number}" for number in (*range(15), 99)])
    assert len(list(store.list_objects("many/"))) == 5
    store.delete_objects([])
