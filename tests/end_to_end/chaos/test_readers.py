"""The damages after a run: each kind is made, reported by the readers, and undone."""

from pathlib import Path

import pytest
import yaml

from sidetier.cli.main import run
from sidetier.segments.keys import ArchiveLayout
from tests.end_to_end.chaos.ledger import Partition
from tests.end_to_end.chaos.readers import unreported_damage
from tests.harness.archive_objects import ArchiveStore, file_store, s3_store
from tests.harness.damaged_logs import Damage
from tests.harness.log_dir import LogDir
from tests.harness.s3 import S3Bucket

LAYOUT = ArchiveLayout("test", 3)
PARTITIONS: list[Partition] = [("orders", number) for number in range(7)]
"""With one more damage for each, all kinds happen."""


def archive_into(store: ArchiveStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Archive four segments of each partition; no two partitions have the same offsets."""
    log_dir = LogDir(root / "logs")
    for topic, number in PARTITIONS:
        log_dir.create(topic, number).closed_segments(4, 20 + number)
    log_dir.checkpoint_high_watermarks()
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    settings = {
        "cluster": {"name": LAYOUT.cluster},
        "log_dirs": [str(log_dir)],
        "storage": {**store.settings, "prefix_entropy_bits": LAYOUT.bits},
        "uploader": {"threads": 2, "pins": {"min_free_disk": "0"}},
    }
    config = root / "sidetier.yaml"
    config.write_text(yaml.safe_dump(settings))
    assert run(["backfill", "--config", str(config)]) == 0


def check(store: ArchiveStore) -> None:
    before = {key: store.objects.read(key) for key in store.objects.listing()}
    for seed in (1, 2):
        reported, problems = unreported_damage(store, LAYOUT, PARTITIONS, seed)
        assert problems == []
        assert reported[Damage.CUT.name] == len(PARTITIONS)
        assert all(reported[damage.name] for damage in Damage), reported
    assert {key: store.objects.read(key) for key in store.objects.listing()} == before


def test_every_damage_is_reported_and_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = file_store(tmp_path / "store")
    archive_into(store, tmp_path, monkeypatch)
    check(store)


@pytest.mark.integration
def test_every_damage_is_reported_by_a_store_with_checksums_of_its_own(
    s3_bucket: S3Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = s3_store(s3_bucket)
    archive_into(store, tmp_path, monkeypatch)
    check(store)
