"""The high watermark gate: a closed segment is not necessarily committed."""

import os
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from sidetier.leadership.port import HighWatermark
from sidetier.segments.offsets import UNKNOWN_EPOCH, LeaderEpoch, Offset, TopicPartition
from sidetier.telemetry.metrics import Metrics
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.gates.high_watermark import CHECKPOINT_NAME, CommittedGate
from sidetier.uploader.unexpected import UnexpectedErrors

TP = TopicPartition("t", 0)
WRITTEN_NS = 1_000_000_000


class Ticking:
    """A clock that advances a second per reading, so that the checkpoint file is checked each
    time.
    """

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def write(log_dir: Path, text: str, at_ns: int = WRITTEN_NS) -> None:
    path = log_dir / CHECKPOINT_NAME
    path.write_bytes(text.encode(errors="surrogateescape"))
    os.utime(path, ns=(at_ns, at_ns))


def is_committed(gate: CommittedGate, log_dir: Path, modified_ns: int = 0, epoch: int = 3) -> bool:
    """Whether the gate knows a segment that ends at offset 20 as committed."""
    return gate.known(TP, str(log_dir), LeaderEpoch(epoch)).cover(20, modified_ns)


@pytest.mark.parametrize(
    ("high_watermark", "committed"), [(19, False), (20, True), (21, True), (0, False)]
)
def test_checkpoint_must_reach_the_segments_next_offset(
    tmp_path: Path, high_watermark: int, *, committed: bool
) -> None:
    write(tmp_path, f"0\n1\nt 0 {high_watermark}\n")
    assert is_committed(CommittedGate(Ticking()), tmp_path) is committed


@pytest.mark.parametrize(
    ("modified_ns", "committed"),
    [(WRITTEN_NS - 1, True), (WRITTEN_NS, False), (WRITTEN_NS + 1, False)],
)
def test_checkpoint_older_than_the_last_append_does_not_count(
    tmp_path: Path, modified_ns: int, *, committed: bool
) -> None:
    """It may refer to an epoch history that was truncated since."""
    write(tmp_path, "0\n1\nt 0 99\n")
    gate = CommittedGate(Ticking())
    assert is_committed(gate, tmp_path, modified_ns=modified_ns) is committed


def test_checkpoint_row_of_another_partition_does_not_count(tmp_path: Path) -> None:
    write(tmp_path, "0\n2\nt 1 99\nu 0 99\n")
    assert not is_committed(CommittedGate(Ticking()), tmp_path)


@pytest.mark.parametrize(
    "text", ["1\n0\n", "0\n2\nt 0 99\n", "0\n1\nt zero 99\n", "0\n1\nt 0 20\n\udcff"]
)
def test_malformed_checkpoint_does_not_count_and_is_reported_once(
    tmp_path: Path, text: str
) -> None:
    write(tmp_path, text)
    errors = UnexpectedErrors(Metrics(CollectorRegistry()), SYSTEM_CLOCK)
    gate = CommittedGate(Ticking(), on_checkpoint=errors.file_was_read)
    assert not is_committed(gate, tmp_path)
    assert not is_committed(gate, tmp_path)
    (held,) = errors.held()
    assert held.subject == str(tmp_path / CHECKPOINT_NAME)
    assert held.failures == 1, "told once, though it is read often"
    write(tmp_path, "0\n1\nt 0 20\n")
    assert is_committed(gate, tmp_path), "the next one counts, even of the same time"
    assert errors.held() == ()


def test_missing_checkpoint_does_not_count(tmp_path: Path) -> None:
    assert not is_committed(CommittedGate(Ticking()), tmp_path)


def test_newer_checkpoint_replaces_the_known_high_watermark(tmp_path: Path) -> None:
    gate = CommittedGate(Ticking())
    write(tmp_path, "0\n1\nt 0 20\n")
    assert is_committed(gate, tmp_path)
    write(tmp_path, "0\n1\nt 0 10\n", WRITTEN_NS + 1)
    assert not is_committed(gate, tmp_path)


def test_each_log_dir_has_its_own_checkpoint(tmp_path: Path) -> None:
    one, two = tmp_path / "1", tmp_path / "2"
    for path in (one, two):
        path.mkdir()
    write(one, "0\n1\nt 0 20\n")
    gate = CommittedGate(Ticking())
    assert is_committed(gate, one)
    assert not is_committed(gate, two)


def test_checkpoint_is_not_read_for_each_segment(tmp_path: Path) -> None:
    write(tmp_path, "0\n1\nt 0 20\n")
    now = [0.0]
    gate = CommittedGate(lambda: now[0])
    assert is_committed(gate, tmp_path)
    write(tmp_path, "0\n1\nt 0 10\n", WRITTEN_NS + 1)
    assert is_committed(gate, tmp_path)
    now[0] = 0.06
    assert not is_committed(gate, tmp_path)


@pytest.mark.parametrize(
    ("offset", "answered", "led", "committed"),
    [
        pytest.param(20, 3, 3, True, id="reached"),
        pytest.param(19, 3, 3, False, id="not reached"),
        pytest.param(99, 2, 3, False, id="an earlier leader's"),
        pytest.param(99, 4, 3, False, id="a later leader's"),
        pytest.param(99, -1, 3, False, id="of nobody knows whom"),
        pytest.param(99, -1, -1, False, id="nobody knows who leads"),
        pytest.param(99, 3, -1, False, id="our own epoch is unknown"),
    ],
)
def test_answer_of_a_broker_counts_only_in_the_same_epoch(
    tmp_path: Path, offset: int, answered: int, led: int, *, committed: bool
) -> None:
    assert UNKNOWN_EPOCH == -1
    gate = CommittedGate(Ticking())
    gate.learn({TP: HighWatermark(Offset(offset), LeaderEpoch(answered))}, asked_at=0.0)
    assert is_committed(gate, tmp_path, epoch=led) is committed


def test_answer_of_a_broker_is_forgotten_with_the_lead(tmp_path: Path) -> None:
    gate = CommittedGate(Ticking())
    gate.learn({TP: HighWatermark(Offset(20), LeaderEpoch(3))}, asked_at=0.0)
    gate.forget(TP)
    gate.forget(TP)
    assert not is_committed(gate, tmp_path)


def test_answer_confirms_the_lead_only_up_to_the_time_of_the_request() -> None:
    """The answer may have taken long, and another broker may have been elected since."""
    now = 10.0
    gate = CommittedGate(lambda: now, asks_brokers=True)
    now = 99.0
    gate.learn({TP: HighWatermark(Offset(20), LeaderEpoch(3))}, asked_at=20.0)
    assert gate.named_at(TP, LeaderEpoch(3)) == 20.0


def test_only_answers_of_brokers_count_without_the_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, "0\n1\nt 0 99\n")
    gate = CommittedGate(Ticking(), use_checkpoint=False)
    assert not is_committed(gate, tmp_path)
    gate.learn({TP: HighWatermark(Offset(20), LeaderEpoch(3))}, asked_at=0.0)
    assert is_committed(gate, tmp_path)
