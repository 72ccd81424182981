"""What readers find of early segments: encrypted ones too, and Pinterest's consumer."""

from itertools import count
from pathlib import Path

import pytest

from sidetier.archive.reader import ReachedEnd
from sidetier.segments.errors import EncryptionKeyError
from sidetier.storage.encrypted_format import is_encrypted
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import RemoteStorage
from sidetier.uploader import engine
from tests.harness.archive_sound import check_archive
from tests.harness.daemons import (
    LAYOUT,
    OffsetsByHand,
    Site,
    is_killed_before,
    key_of,
    stored_logs,
    stored_next,
)
from tests.harness.encryption import DecryptedView, encrypting, without_keys
from tests.harness.intercepted_store import MortalStore
from tests.harness.log_dir import LogDir, PartitionLog
from tests.harness.made_archive import offsets, reading, take_to_end
from tests.harness.pinterest_archive import read_as_pinterest
from tests.harness.stored_log import read_records

EARLY = {"topics": ["t"], "bytes": 500, "age": 3600}
"""A part has two batches of 296 bytes, of five records each."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the logs all the time."""
    for name in ("_TAILS_SECONDS", "_TOTALS_SECONDS", "LONGEST_WAIT"):
        monkeypatch.setattr(engine, name, 0.02)
    monkeypatch.setattr(engine, "_MAX_SHARE_OF_TIME", 1.0)


def read_from(store: RemoteStorage, log: PartitionLog, start: int) -> list[int]:
    with reading(store, layout=LAYOUT) as reader:
        reader.assign(log.tp, start)
        taken = take_to_end(reader)
    assert isinstance(taken[-1], ReachedEnd)
    return offsets(taken)


def pinterest(store: FakeStorage, log: PartitionLog, start: int = 0) -> list[int]:
    """Return the offsets that Pinterest's consumer reads, after a look at their records."""
    found = list(read_as_pinterest(store.contents().get, LAYOUT.partition_prefix(log.tp), start))
    written = read_records(log.written[0], "the broker's segment")
    assert found == [(offset, record) for offset, record in written if offset >= start]
    return [offset for offset, _ in found]


@pytest.mark.parametrize("encrypts", [False, True])
def test_parts_are_read_like_segments(
    log_dir: LogDir, log: PartitionLog, *, encrypts: bool
) -> None:
    view = DecryptedView(lambda: 0)
    store: RemoteStorage = encrypting(view) if encrypts else view
    site = Site([log_dir], store, settings={"early": EARLY, "rescan_interval": 0.1})
    site.log_offsets = OffsetsByHand(site.log_dirs)
    log.append(10)
    with site.running() as running:
        for more, end in ((0, 10), (20, 30), (5, 30)):
            log.append(more)
            running.wait(lambda: stored_next(view, log.tp) == end, f"{end} to be archived")  # noqa: B023
        log.roll()
        log.append(1)
        log_dir.checkpoint_high_watermarks()
        running.wait(lambda: stored_next(view, log.tp) == 35, "the closed segment")
    check_archive(view, log.tp)
    raw = FakeStorage.contents(view)
    logs = {key_of(log.tp, base) for base in (0, 10, 20, 30)}
    assert {key for key, data in raw.items() if is_encrypted(data)} == (logs if encrypts else set())
    assert any(log.written[0][61:200] in data for data in raw.values()) != encrypts
    for start in (0, 7, 10, 33):
        assert read_from(store, log, start) == list(range(start, 35))
        assert pinterest(view, log, start) == list(range(start, 35))
    if encrypts:
        with pytest.raises(EncryptionKeyError):
            without_keys(view).get_object(key_of(log.tp, 10))


@pytest.mark.parametrize("encrypts", [False, True])
def test_after_a_kill_each_record_is_read_once(tmp_path: Path, *, encrypts: bool) -> None:
    """Also by Pinterest's consumer, which follows `_metadata` and uses the indexes."""
    kills = 0
    for lives in count():
        view, log_dir = DecryptedView(lambda: 0), LogDir(tmp_path / f"killed-{lives}")
        log = log_dir.create()
        log.append(20)
        mortal = MortalStore(view, lives, after=True)
        site = Site([log_dir], encrypting(mortal) if encrypts else mortal)
        site.log_offsets = OffsetsByHand(site.log_dirs)
        site.settings = {"early": EARLY, "threads": 1, "request_threads": 1}
        is_killed = is_killed_before(site, view, log.tp, 20)
        kills += is_killed
        log.append(10)
        site.store = encrypting(view) if encrypts else view
        with site.running(early={**EARLY, "bytes": 200}) as running:
            running.wait(lambda: stored_next(view, log.tp) == 30, "the rest")  # noqa: B023
        assert pinterest(view, log) == list(range(30)), f"after a kill at request {lives + 1}"
        assert read_from(site.store, log, 0) == list(range(30))
        raw = FakeStorage.contents(view)
        sealed = [is_encrypted(raw[key_of(log.tp, base)]) for base in stored_logs(view, log.tp)]
        assert sealed == [encrypts] * len(sealed)
        if not is_killed:
            break
    assert kills >= 12
