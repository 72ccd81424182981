"""Two sidecars that both believe they lead a partition, in every order of their requests.

Nothing is stored at first, so neither sidecar has a watermark to rely on (invariants 3 and 5).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from unittest.mock import patch

import pytest

from sidetier.segments.crc import crc64nvme
from sidetier.segments.errors import ArchiveConflictError
from sidetier.segments.listing import ClosedSegment
from sidetier.segments.names import FileKind
from sidetier.segments.notes import LEADER_EPOCH_KEY, NEXT_OFFSET_KEY
from sidetier.segments.offsets import BaseOffset, BrokerId, LeaderEpoch, Offset, TopicPartition
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.archive.archive_state import ArchiveState, Leader
from sidetier.uploader.archive.archive_writer import ArchiveWriter
from sidetier.uploader.archive.metadata_cache import MetadataCache
from sidetier.uploader.errors import StandDownError
from sidetier.uploader.sending import conditional_put
from sidetier.uploader.sending.conditional_put import FileToStore, store_file
from sidetier.uploader.state.plan import PlannedSegment, plan
from sidetier.uploader.state.segment import StoredSegment
from tests.harness.archive_sound import recorded_gaps
from tests.harness.daemons import LAYOUT, key_of, stored_logs, watermark_of
from tests.harness.interleaving import ContentTagged, Writer, explore, finish

TP = TopicPartition("t", 0)
END = 20
_MAX_ROUNDS = 6
_BATCH = 5
SWITCHES = 2
"""Maximum number of switches between the writers: one is paused before any request, another
continues up to any of its requests, the first continues, and wherever it pauses the other one
finishes. Three switches take ten times as long.
"""


@dataclass(frozen=True)
class Sidecar:
    """A sidecar that leads in `epoch`, with a log of these base offsets; the last segment is
    active.
    """

    broker: int
    epoch: int
    bases: tuple[int, ...]

    def __call__(self, store: RemoteStorage) -> None:
        """Store the closed segments as the daemon does, one request after the other."""
        numbers = count()
        with patch("uuid.uuid4", lambda: self._nonce(next(numbers))):
            for _ in range(_MAX_ROUNDS):
                try:
                    if self._work(store):
                        return
                except StandDownError:
                    return
                except ArchiveConflictError:
                    continue  # read everything again

    def _nonce(self, number: int) -> "Sidecar._Hex":
        return Sidecar._Hex(f"{self.broker}-{self.epoch}-{number}")

    @dataclass(frozen=True)
    class _Hex:
        hex: str

    def _work(self, store: RemoteStorage) -> bool:
        leader = Leader(BrokerId(self.broker), LeaderEpoch(self.epoch), None)
        archive_writer = ArchiveWriter(store, LAYOUT, MetadataCache(1 << 20))
        archive = archive_writer.load(TP, leader)
        if archive.next_offset is None:
            archive = archive.beginning_at(Offset(self.bases[0]))
        archive = archive_writer.prepare(TP, archive, leader)
        while True:
            assert archive.next_offset is not None
            step = plan(archive.next_offset, self._closed(), BaseOffset(self.bases[-1]))
            if step.segments:
                stored = self._upload(store, archive, step.segments[0])
                archive = archive_writer.commit(TP, archive, [stored], leader)
            elif step.gap is not None:
                archive = archive_writer.record_gap(TP, archive, step.gap, leader)
            else:
                return True

    def _closed(self) -> list[ClosedSegment]:
        return [
            ClosedSegment(BaseOffset(base), BaseOffset(end), marked_for_deletion=False)
            for base, end in pairwise(self.bases)
        ]

    def _upload(
        self, store: RemoteStorage, archive: ArchiveState, planned: PlannedSegment
    ) -> StoredSegment:
        """Upload a segment; a slice is named by the batch that holds its first offset."""
        base, end = planned.segment.base_offset, planned.segment.next_base
        assert end is not None
        if planned.is_slice:
            base = BaseOffset(planned.start - planned.start % _BATCH)
        for file in _files(base, end, self.epoch):
            store_file(store, file, may_exist=file.key in (archive.present or ()))
        return StoredSegment(base, Offset(end), 0, 1, 1)


def _files(base: int, end: int, epoch: int) -> Iterator[FileToStore]:
    for kind in (FileKind.INDEX, FileKind.TIMEINDEX, FileKind.LOG):
        data = _bytes(kind, base, end)
        notes = {NEXT_OFFSET_KEY: str(end), LEADER_EPOCH_KEY: "0"} if kind is FileKind.LOG else {}
        yield FileToStore(
            key_of(TP, base, kind), BytesBody(data), crc64nvme(data), notes, LeaderEpoch(epoch)
        )


def _bytes(kind: FileKind, base: int, end: int) -> bytes:
    """Make file contents. Logs of different lengths differ. Offset indexes with the same number of
    entries (one per ten offsets) are equal, so each also fits the other log.
    """
    if kind is FileKind.INDEX:
        return b"i" * ((end - base) // 10)
    return b"%s %d to %d" % (kind.encode(), base, end)


def _end(log: bytes) -> int:
    return int(log.split()[-1])


def _sound(before: ContentTagged, after: ContentTagged) -> None:
    """Assert that every `.log` is unchanged and has matching indexes, and that the watermark
    neither decreases nor passes a gap.
    """
    old, logs = stored_logs(before, TP), stored_logs(after, TP)
    assert {base: logs.get(base) for base in old} == old, "a log was replaced"
    contents = after.contents()
    for base, log in logs.items():
        for kind in (FileKind.INDEX, FileKind.TIMEINDEX):
            index = contents[key_of(TP, base, kind)]
            assert index in {b"", _bytes(kind, base, _end(log))}, f"{index!r} beside {log!r}"
    was, now = watermark_of(before, TP), watermark_of(after, TP)
    if now is None:
        assert was is None, "the watermark is gone"
        return
    assert was is None or (was.next_offset or 0) <= (now.next_offset or 0), "it fell"
    assert was is None or was.start_offset == now.start_offset, "the archive begins elsewhere"
    expected = now.start_offset
    assert expected is not None
    spans = [(base, _end(log)) for base, log in logs.items()] + recorded_gaps(after, TP)
    for first, end in sorted(spans):
        if first <= expected < end:
            expected = Offset(end)
    assert expected >= (now.next_offset or 0), f"nothing holds {expected}"
    assert now.base_offset in logs


PAIRS = {
    "other bases": ((0, 10, END), (0, 15, END)),
    "other bases, turned round": ((0, 15, END), (0, 10, END)),
    "one rolls twice": ((0, END), (0, 10, END)),
    "the other rolls twice": ((0, 10, END), (0, END)),
    "the same bases": ((0, 10, END), (0, 10, END)),
    "indexes alike": ((0, 10, END), (0, 15, END)),
    "a later start": ((0, 10, END), (10, END)),
    "a start within a segment": ((0, 10, END), (5, 15, END)),
    "an earlier start": ((10, END), (0, END)),
}


@pytest.mark.parametrize("epochs", [(1, 2), (1, 1)], ids=str)
@pytest.mark.parametrize(("first", "second"), PAIRS.values(), ids=PAIRS)
def test_no_interleaving_of_two_sidecars_breaks_the_archive(
    first: tuple[int, ...], second: tuple[int, ...], epochs: tuple[int, int]
) -> None:
    """A third sidecar takes over after both are dead: it archives everything and records no gap for
    offsets that one of them stored.
    """
    sidecars: list[Writer] = [Sidecar(1, epochs[0], first), Sidecar(2, epochs[1], second)]
    found = explore(ContentTagged(), sidecars, _sound, switches=SWITCHES)
    assert found.steps > 100
    for store in found.stores:
        heir = finish(Sidecar(3, 3, second), store, _sound)
        watermark = watermark_of(heir, TP)
        assert watermark is not None
        assert watermark.next_offset == END
        assert recorded_gaps(heir, TP) == recorded_gaps(store, TP)


@pytest.mark.parametrize("kind", [FileKind.INDEX, FileKind.TIMEINDEX])
@pytest.mark.parametrize("length", [10, 15, END])
def test_leftover_index_of_a_killed_sidecar_does_not_break_the_archive(
    kind: FileKind, length: int
) -> None:
    """The index may have the same bytes as one of the two would store, and is then kept."""
    left = ContentTagged()
    file = next(each for each in _files(0, length, 0) if each.key.endswith(kind))
    store_file(left, file, may_exist=False)
    explore(left, [Sidecar(1, 1, (0, END)), Sidecar(2, 2, (0, 10, END))], _sound, switches=SWITCHES)


def test_replacing_the_log_of_an_earlier_leader_would_break_the_archive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Proves that these tests detect the bug: an earlier version replaced an earlier leader's
    log.
    """
    monkeypatch.setattr(
        conditional_put,
        "_instead",
        lambda ours, _there, _verdict: ours,
    )
    with pytest.raises(AssertionError):
        explore(
            ContentTagged(),
            [Sidecar(1, 1, (0, END)), Sidecar(2, 2, (0, 10, END))],
            _sound,
            switches=SWITCHES,
        )


def test_keeping_the_index_of_another_sidecar_would_break_the_archive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        conditional_put,
        "compare",
        lambda head, ours: (
            conditional_put.Existing.GOOD if ours.may_be_empty else _compare(head, ours)
        ),
    )
    with pytest.raises(AssertionError, match="beside"):
        explore(
            ContentTagged(),
            [Sidecar(1, 1, (0, END)), Sidecar(2, 2, (0, 10, END))],
            _sound,
            switches=SWITCHES,
        )


_compare = conditional_put.compare
