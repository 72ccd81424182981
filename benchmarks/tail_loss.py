"""Tail packs: what is lost with broker, sidecar and disk at once, and what the packs cost."""

import os
import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any
from unittest.mock import patch
from zlib import crc32

import click
from confluent_kafka import KafkaError, Message, Producer
from lib.backlog import broker, create_topic, make_producer, values
from lib.clock import monotonic, pause
from lib.options import benchmark_options, work_directory
from lib.repeated import InThread
from lib.results import Report, Spread, Target
from lib.sidecar import CLUSTER, Setup, Sidecar
from lib.stores import RealStore, real_store

from devtools.sandbox.kafka import KraftCluster
from sidetier.archive.access import open_archive
from sidetier.archive.tail.read import read_tails
from sidetier.archive.tail.survey import survey
from sidetier.config.storage import StorageConfig
from sidetier.segments.offsets import TopicPartition
from sidetier.segments.records import read_records

_TOPIC = "orders"
_PARTITIONS = 200
_VALUE_BYTES = 2000
_RATE = 10_000_000
_INTERVAL = 5.0
_SEGMENT_BYTES = 16 << 20
_SHORTEST, _LONGEST = 7.0, 14.0
_READY_SECONDS = 120.0
_HOW = """\
One KRaft broker with a sidecar (`uploader.tail.interval: {interval:g}s`, otherwise default
settings) and versitygw, all on this machine. A producer with acks=all sends {rate:.0f} MB/s in
records of {value:,} bytes that do not compress to {partitions} partitions, in segments of 16 MiB.
After a random time of {shortest:g} to {longest:g} s, broker and sidecar get SIGKILL at once. Then
archive and packs alone are read, as `sidetier tail promote` reads them. **Lost** is the age, at the
kill, of the oldest acknowledged record that neither has; a record is wrong if its value is not the
one that was acknowledged at its offset. Then both start again, and the next trial begins when the
tail of all partitions has begun. {trials} trials."""


class Load(InThread):
    """A producer at a fixed rate; `acked` has value's checksum and time of acknowledgement, by
    partition and offset.
    """

    def __init__(self, cluster: KraftCluster, rate: int) -> None:
        super().__init__()
        self.acked: dict[int, dict[int, tuple[int, float]]] = {
            number: {} for number in range(_PARTITIONS)
        }
        self._producer: Producer = make_producer(cluster, linger_ms=100, message_timeout_ms=5000)
        self._values = values(_VALUE_BYTES)
        self._rate = rate

    def _run(self) -> None:
        began, sent = monotonic(), 0
        while not self._stopping.is_set():
            due = int((monotonic() - began) * self._rate / _VALUE_BYTES)
            for number in range(sent, due):
                value = self._values[number % len(self._values)]
                self._producer.produce(
                    _TOPIC, value, partition=number % _PARTITIONS, on_delivery=self._note
                )
            sent = max(sent, due)
            self._producer.poll(0.01)
        self._producer.purge()
        self._producer.flush(5)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            self.acked[partition][offset] = crc32(message.value() or b""), monotonic()


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial: seconds, records, bytes, and seconds of CPU time of the sidecar."""

    seconds: float
    acknowledged: int
    lost_seconds: float
    lost_records: int
    wrong: int
    from_tail: int
    tail_bytes: int
    packs: int
    cycle_seconds: float
    cpu_seconds: float
    peak_bytes: int


class Bench:
    """The broker, the store, and one sidecar after the other."""

    def __init__(self, directory: Path, cluster: KraftCluster, store: RealStore) -> None:
        self._directory = directory
        self._cluster = cluster
        self._store = store
        self._dice = random.Random(33)

    def trial(self, rate: int) -> Trial:
        """Run one trial; the broker runs at its beginning and at its end."""
        setup = Setup(
            self._directory / "sidecar",
            self._cluster.log_dirs(1),
            self._store.storage,
            {
                "leadership": {"source": "kraft"},
                "broker": {"bootstrap_servers": self._cluster.bootstrap_servers},
                "uploader": {"tail": {"interval": f"{_INTERVAL:g}s"}},
            },
            self._store.environment,
        )
        with ExitStack() as stack:
            sidecar = stack.enter_context(Sidecar(setup))
            sidecar.wait_until_ready(_READY_SECONDS)
            sidecar.wait_until(
                lambda: _count(sidecar, "sidetier_safe_to_offset") == _PARTITIONS,
                _READY_SECONDS,
                "the tail of all partitions",
                0.2,
            )
            before = _sums(sidecar)
            load = Load(self._cluster, rate)
            with load:
                began = monotonic()
                pause(self._dice.uniform(_SHORTEST, _LONGEST))
                sums, cpu = _sums(sidecar), sidecar.cpu_seconds
                peak = sidecar.peak_resident_bytes
                died = monotonic()
                sidecar.process.kill()
                self._cluster.kill_broker(1)
        found = self._judge(load.acked, died)
        self._cluster.start_broker(1)
        cycles = max(1.0, sums["cycle_seconds_count"] - before["cycle_seconds_count"])
        return Trial(
            seconds=died - began,
            acknowledged=sum(map(len, load.acked.values())),
            tail_bytes=int(sums["bytes_total"] - before["bytes_total"]),
            packs=int(sums["packs_total"] - before["packs_total"]),
            cycle_seconds=(sums["cycle_seconds_sum"] - before["cycle_seconds_sum"]) / cycles,
            cpu_seconds=cpu,
            peak_bytes=peak,
            **found,
        )

    def _judge(
        self, acked: Mapping[int, Mapping[int, tuple[int, float]]], died: float
    ) -> dict[str, Any]:
        """Read archive and packs, and compare them with what was acknowledged before the kill."""
        settings = StorageConfig.model_validate(self._store.storage)
        wrong = from_tail = lost = 0
        oldest = died
        with (
            patch.dict(os.environ, self._store.environment),
            open_archive(CLUSTER, settings) as archive,
        ):
            found = survey(archive)
            if found.problems:
                raise RuntimeError(f"packs cannot be read: {found.problems}")
            ends = {one.tp: one.safe_up_to or 0 for one in found.partitions}
            tails = {
                one.tp: one.merged for one in found.partitions if one.merged and one.has_records
            }
            for part in read_tails(archive.default_store, tails):
                here = acked[part.tp.partition]
                data = b"".join(bytes(batch.data) for batch in part.batches)
                for record in read_records(data, "the tail"):
                    from_tail += 1
                    known = here.get(record.offset)
                    wrong += known is not None and known[0] != crc32(record.value or b"")
        for number, here in acked.items():
            tp = TopicPartition(_TOPIC, number)
            end = max(ends.get(tp, 0), self._store.stored_up_to(tp))
            for offset, (_, at) in here.items():
                if offset >= end and at <= died:
                    lost += 1
                    oldest = min(oldest, at)
        return {
            "lost_seconds": died - oldest,
            "lost_records": lost,
            "wrong": wrong,
            "from_tail": from_tail,
        }


def _count(sidecar: Sidecar, name: str) -> int:
    return sum(sample == name for sample, _ in sidecar.samples())


def _sums(sidecar: Sidecar) -> dict[str, float]:
    names = ("bytes_total", "packs_total", "cycle_seconds_sum", "cycle_seconds_count")
    sums = dict.fromkeys(names, 0.0)
    for (name, _), value in sidecar.samples().items():
        short = name.removeprefix("sidetier_tail_")
        if short in sums:
            sums[short] += value
    return sums


def report_of(trials: Sequence[Trial]) -> Report:
    """Make the report of some trials."""
    lost = [one.lost_seconds for one in trials]
    p99 = quantiles(lost, n=100)[98] if len(lost) > 1 else lost[0]
    cycles = Spread.of(one.cycle_seconds for one in trials)
    report = Report(
        "tail_loss",
        "What is lost with tail packs",
        _HOW.format(
            interval=_INTERVAL,
            rate=_RATE / 1e6,
            value=_VALUE_BYTES,
            partitions=_PARTITIONS,
            shortest=_SHORTEST,
            longest=_LONGEST,
            trials=len(trials),
        ),
        [
            Target("99th percentile of what is lost, in seconds", p99, 7.0),
            Target("wrong records in any trial", float(sum(one.wrong for one in trials)), 0.0),
            Target("seconds of a cycle, median", cycles.middle, _INTERVAL),
        ],
        {"trials": [asdict(one) for one in trials]},
    )
    sizes = [one.acknowledged * _VALUE_BYTES for one in trials]
    rows = {
        "lost, s": Spread.of(lost).text(),
        "lost records, % of the acknowledged ones": Spread.of(
            100 * one.lost_records / max(1, one.acknowledged) for one in trials
        ).text(1),
        "MB/s acknowledged": Spread.of(
            size / one.seconds / 1e6 for one, size in zip(trials, sizes, strict=True)
        ).text(1),
        "bytes of packs per acknowledged byte": Spread.of(
            one.tail_bytes / max(1, size) for one, size in zip(trials, sizes, strict=True)
        ).text(),
        "seconds of a cycle": cycles.text(),
        "peak resident memory of the sidecar, MB": Spread.of(
            one.peak_bytes / 1e6 for one in trials
        ).text(0),
    }
    report.table(["", "minimum / median / maximum"], rows.items())
    return report


@click.command()
@benchmark_options
def main(*, quick: bool, runs: int | None, record: bool, json_path: Path | None) -> None:
    """Measure what is lost with broker, sidecar and disk at once."""
    trials = runs or (2 if quick else 50)
    with ExitStack() as stack:
        directory = stack.enter_context(work_directory())
        store = stack.enter_context(real_store(directory / "store"))
        cluster = stack.enter_context(broker(directory / "kafka"))
        create_topic(cluster, _TOPIC, _PARTITIONS, _SEGMENT_BYTES)
        bench = Bench(directory, cluster, store)
        found = []
        for number in range(trials):
            found.append(bench.trial(_RATE // 10 if quick else _RATE))
            print(f"{number + 1} of {trials}: {found[-1]}", file=sys.stderr)
    sys.exit(report_of(found).finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()
