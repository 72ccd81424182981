"""The status page's API: time, CPU and size of a page with 2,000 and 10,000 partitions."""

import http.client
import random
import sys
import threading
import time
from pathlib import Path

import click
from lib.clock import monotonic, pause, wall
from lib.options import benchmark_options
from lib.results import Report, Spread, Target

from sidetier.segments.offsets import BaseOffset, BrokerId, Offset, TopicPartition
from sidetier.telemetry.http import HttpServer
from sidetier.telemetry.metrics import create_registry
from sidetier.telemetry.pages import Application, partition_page
from sidetier.telemetry.status import Condition, PartitionState, PartitionStatus, SegmentStatus
from sidetier.uploader.archive.unresolved import StoreRecords, Unresolved
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.log_tail import LogTail
from sidetier.uploader.status_board import StatusBoard, Totals, _Known

_MOST = 10_000
_LIMIT_MS, _LIMIT_KB = 100.0, 200.0
_REQUESTS = {
    "100, worst first": "offset=0&limit=100",
    "100, by age, one topic pattern": "offset=0&limit=100&sort=age&topic=*7*",
    "100, of one state": "offset=0&limit=100&state=archived",
    "100, the last": "offset={last}&limit=100",
    "1,000, worst first": "offset=0&limit=1000",
    "all, without pages": "",
}
_HOW = """\
The status board of a sidecar with this number of partitions, of which every tenth has closed
segments that are not archived and every hundredth an error, behind the HTTP server of `sidetier
run`. One client requests each kind of page {requests} times over one connection, with gzip.
**CPU** is that of the process, server and client, per request. **Delay** is the longest time that
another thread needed meanwhile to write to the board, as the daemon's thread does: it has to wait
for the interpreter's lock, which Python passes on every 5 ms. {runs} runs."""


def _board(partitions: int) -> StatusBoard:
    random.seed(7)
    board = StatusBoard("prod-a", BrokerId(1), SYSTEM_CLOCK)
    now = wall()
    tails = {}
    for i in range(partitions):
        tp = TopicPartition(f"team-{i % 37}.events-{i // 50}", i % 50)
        end, is_behind, is_held = random.randrange(10**9), i % 10 == 0, i % 100 == 0
        error = f"put {tp.topic}-{tp.partition}/{end:020d}.log: 503 SlowDown" if is_held else None
        status = PartitionStatus(
            tp.topic,
            tp.partition,
            PartitionState.WAITING if is_behind else PartitionState.ARCHIVED,
            watermark_base=BaseOffset(end * 9 // 10),
            archive_start=Offset(end // 10),
            next_offset=Offset(end),
            local_start=Offset(end // 2),
            local_closed_end=Offset(end + 1000 * is_behind),
            unstored_segments=int(is_behind),
            unstored_bytes=random.randrange(10**9) * is_behind,
            waiting_for=f"another try after: {error}" if error else None,
            last_error=error,
            segments=(_segment(end, error),) if is_behind else (),
        )
        closed = now - random.randrange(3600) if is_behind else None
        deleted = None if closed is None else closed + 86_400
        board._known[tp] = _Known(status, closed, deleted)  # noqa: SLF001 -- needs no brokers
        log_end = Offset(end + random.randrange(10**6))
        tails[tp] = LogTail(log_end, random.randrange(10**9), now - random.randrange(3600))
    board.set_tails(tails)
    board.set_store_records(StoreRecords(Unresolved(), None))
    return board


def _segment(base: int, error: str | None) -> SegmentStatus:
    return SegmentStatus(
        BaseOffset(base),
        Offset(base + 1000),
        1 << 30,
        "closed",
        pinned=True,
        marked_for_deletion=False,
        error=error,
    )


class _Writer:
    """Writes to the board every millisecond, as the daemon's thread does."""

    def __init__(self, board: StatusBoard) -> None:
        self.longest = 0.0
        self._board = board
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        ready = (Condition("bootstrapped", holds=True),)
        while not self._stop.is_set():
            began = monotonic()
            self._board.set_totals(Totals(), ready)
            self.longest = max(self.longest, monotonic() - began)
            pause(0.001)

    def stop(self) -> float:
        self._stop.set()
        self._thread.join()
        return self.longest


def _measure(partitions: int, requests: int) -> dict[str, dict[str, list[float]]]:
    board = _board(partitions)
    application = Application(
        create_registry(), board, pages=lambda query: partition_page(board.page(query))
    )
    server = HttpServer("127.0.0.1", 0, application)
    server.start()
    measured = {}
    try:
        for kind, query in _REQUESTS.items():
            connection = http.client.HTTPConnection("127.0.0.1", server.port)
            path = f"/api/partitions?{query.format(last=partitions - 100)}"
            times: list[float] = []
            writer = _Writer(board)
            cpu = time.process_time()
            for _ in range(requests):
                began = monotonic()
                connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
                size = len(connection.getresponse().read())
                times.append((monotonic() - began) * 1000)
            cpu = (time.process_time() - cpu) / requests
            connection.close()
            measured[kind] = {
                "ms": times,
                "cpu_ms": [cpu * 1000],
                "kb": [size / 1000],
                "delay_ms": [writer.stop() * 1000],
            }
    finally:
        server.stop()
    return measured


@click.command()
@benchmark_options
def main(*, quick: bool, runs: int | None, record: bool, json_path: Path | None) -> None:
    """Measure the API of the status page."""
    runs = runs or (1 if quick else 5)
    requests = 3 if quick else 20
    sizes = (2000, _MOST)
    found: dict[int, dict[str, dict[str, list[float]]]] = {}
    for _ in range(runs):
        for size in sizes:
            for kind, figures in _measure(size, requests).items():
                kept = found.setdefault(size, {}).setdefault(kind, {})
                for name, values in figures.items():
                    kept.setdefault(name, []).extend(values)
    report = Report("page", "The status page's API", _HOW.format(requests=requests, runs=runs))
    report.raw = {"figures": {str(size): kinds for size, kinds in found.items()}}
    report.table(
        ["partitions", "page", "ms", "CPU ms", "kB, gzip", "delay, ms"],
        [
            [
                f"{size:,}",
                kind,
                Spread.of(figures["ms"]).text(0),
                Spread.of(figures["cpu_ms"]).text(0),
                f"{figures['kb'][-1]:.0f}",
                Spread.of(figures["delay_ms"]).text(1),
            ]
            for size, kinds in found.items()
            for kind, figures in kinds.items()
        ],
    )
    slowest = max(
        Spread.of(figures[name]).middle
        for kind, figures in found[_MOST].items()
        for name in ("ms", "cpu_ms")
        if kind.startswith("100,")
    )
    first = found[_MOST]["100, worst first"]
    widest = found[_MOST]["1,000, worst first"]
    report.targets = [
        Target("ms of a page of 100 of 10,000", Spread.of(first["ms"]).middle, _LIMIT_MS),
        Target("CPU ms of a page of 100 of 10,000", Spread.of(first["cpu_ms"]).middle, _LIMIT_MS),
        Target("ms or CPU ms of any page of 100 of 10,000", slowest, _LIMIT_MS),
        Target("kB of a page of 100 of 10,000", first["kb"][-1], _LIMIT_KB),
        Target("kB of a page of 1,000 of 10,000", widest["kb"][-1], _LIMIT_KB),
    ]
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()
