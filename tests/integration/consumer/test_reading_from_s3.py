"""Segments of a real broker on a real S3 server, compared with the broker's consumer output."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from sidetier.archive.access import ArchiveAccess, open_archive
from sidetier.archive.objects.segment import stored_logs
from sidetier.archive.reader import (
    ArchiveReader,
    DamagedArchiveError,
    Failed,
    IsolationLevel,
    ReachedEnd,
    ReaderSettings,
    Records,
)
from sidetier.config.storage import StorageConfig
from sidetier.segments.names import FileKind, segment_file_name
from sidetier.segments.notes import object_note
from sidetier.segments.offsets import BaseOffset, TopicPartition
from tests.harness.archive_objects import s3_store
from tests.harness.arrow_reading import as_consumed, expected, rows
from tests.harness.broker_segments import directories, meta
from tests.harness.cut_logs import cut_log
from tests.harness.made_archive import LAYOUT, MadeArchive, take_until
from tests.harness.s3 import S3Bucket

pytestmark = pytest.mark.integration


@contextmanager
def archive_in(
    bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch, *, secret: str | None = None
) -> Iterator[ArchiveAccess]:
    store = s3_store(bucket)
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    if secret is not None:
        monkeypatch.setenv("TEST_S3_SECRET_KEY", secret)
    storage = StorageConfig.model_validate(
        {**store.settings, "prefix_entropy_bits": LAYOUT.bits, "retry": {"max_elapsed": 5.0}}
    )
    with open_archive(LAYOUT.cluster, storage) as archive:
        yield archive


def store_all(archive: ArchiveAccess, directory: Path) -> tuple[TopicPartition, int]:
    """Store all segments of a partition; return the partition and its next offset."""
    said = meta(directory)
    tp = TopicPartition(str(said["topic"]), 0)
    made = MadeArchive(archive.store(tp.topic), LAYOUT, tp)
    bases = [int(name) for name in [*said["closed_segments"], said["active_segment"]]]
    for base, end in pairwise([*bases, int(said["high"])]):
        for kind in (FileKind.INDEX, FileKind.TIMEINDEX, FileKind.LOG):
            path = directory / segment_file_name(BaseOffset(base), kind)
            data = path.read_bytes() if path.exists() else b""
            key = made.key(base, kind)
            noted = {"sidetier-next-offset": str(end), **object_note(key, len(data))}
            made.put(key, data, noted if kind is FileKind.LOG else None)
    made.mark(bases[-1], int(said["high"]))
    return tp, int(said["high"])


@pytest.mark.parametrize("isolation", IsolationLevel)
def test_every_partition_equals_the_brokers_consumer_output_until_a_segment_is_cut(
    s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch, isolation: IsolationLevel
) -> None:
    settings = ReaderSettings(isolation=isolation, memory_budget=1 << 20, first_range=4096)
    with archive_in(s3_bucket, monkeypatch) as archive:
        stored = {store_all(archive, one)[0]: one for one in directories()}
        reader = ArchiveReader(archive, settings)
        try:
            for tp in stored:
                reader.assign(tp, 0)
            found: dict[TopicPartition, list[dict[str, object]]] = {tp: [] for tp in stored}
            ended: set[TopicPartition] = set()
            while ended != set(stored):
                for one in reader.take(100, 20):
                    assert isinstance(one, Records | ReachedEnd), one
                    if isinstance(one, Records):
                        found[one.tp] += map(as_consumed, rows(one.records))
                    else:
                        ended.add(one.tp)

            tp = next(tp for tp in stored if tp.topic == "idempotent")
            made = MadeArchive(archive.store(tp.topic), LAYOUT, tp)
            prefix = LAYOUT.partition_prefix(tp)
            key = max(log.key for log in stored_logs(made.store.list_objects(prefix), prefix))
            reached = cut_log(made.store, key)
            reader.assign(tp, 0)
            failed = take_until(reader, lambda one: not isinstance(one, Records))[-1]
        finally:
            reader.close()

    for whole, directory in stored.items():
        assert found[whole] == expected(directory, isolation.value), whole
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, DamagedArchiveError)
    assert (failed.error.key, failed.error.offsets.start) == (key, reached)


def test_wrong_credentials_are_reported(
    s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with archive_in(s3_bucket, monkeypatch, secret="not-the-secret") as archive:
        reader = ArchiveReader(archive)
        try:
            reader.assign(TopicPartition("orders", 0), 0)
            failed = take_until(reader, lambda one: isinstance(one, Failed))[-1]
        finally:
            reader.close()

    assert isinstance(failed, Failed)
    assert not failed.error.retry
    assert "403" in str(failed.error)
    assert f"s3://{s3_bucket.name}" in str(failed.error)
