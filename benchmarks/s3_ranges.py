"""S3 ranges: what it costs to read ranges of an S3 server, without anything that uses them.

It is the limit of `sidetier serve` over S3, which also sends the bytes on.
"""

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click
import obstore
from lib import processes
from lib.options import benchmark_options, work_directory
from lib.results import Report, Spread, Target
from lib.stores import BUCKET, RealStore, real_store
from obstore.store import S3Store

from sidetier.storage.port import IfMatch
from sidetier.storage.ranges import read_into
from sidetier.storage.s3 import S3Storage
from sidetier.storage.settings import Credentials, S3Settings

if TYPE_CHECKING:
    from obstore import GetOptions

_MIB, _GIB = 1 << 20, 1 << 30
_OBJECT = 32 * _MIB
_KEY = "segment.log"
_THREADS = 3
_HOW = """\
{size} MiB in ranges of 8 MiB from versitygw, by {threads} threads, each into memory of its own that
it uses again. **recv_into**: a socket, a signed URL and `recv_into`, nothing else. **sidetier**:
`read_into` of the S3 driver, as in `sidetier serve`, with If-Match. **obstore**: `get` and its
`stream`, copied into the same memory, as before. CPU seconds are per GiB, of the reading process
and of versitygw. Both share the machine's cores, and the object is in the page cache. {runs} runs
in turns."""

Fill = Callable[[int, memoryview], None]
"""Fills memory with the bytes of the object from a position on."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One read of all ranges: seconds, and CPU seconds of the client and of the server."""

    size: int
    seconds: float
    client_cpu_seconds: float
    server_cpu_seconds: float


def fillers(store: RealStore) -> dict[str, Fill]:
    """Return the clients by name."""
    server = store.server
    client = store.client()
    client.put_object(Bucket=BUCKET, Key=_KEY, Body=os.urandom(_MIB) * (_OBJECT // _MIB))
    condition = IfMatch(client.head_object(Bucket=BUCKET, Key=_KEY)["ETag"].strip('"'))
    keys = Credentials(server.access_key, server.secret_key)
    own = S3Storage(
        BUCKET,
        "",
        S3Settings(server.endpoint_url, server.region, path_style=True, credentials=keys),
    )
    bare = S3Store(
        BUCKET,
        endpoint=server.endpoint_url,
        region=server.region,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "timeout": "10m"},
    )
    url = urlsplit(obstore.sign(bare, "GET", _KEY, timedelta(hours=1)))
    here = threading.local()

    def by_socket(start: int, buffer: memoryview) -> None:
        if not hasattr(here, "socket"):
            here.socket = socket.create_connection((url.hostname, url.port))
        end = start + len(buffer) - 1
        request = f"GET {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\n"
        here.socket.sendall(f"{request}Range: bytes={start}-{end}\r\n\r\n".encode())
        head, _, body = here.socket.recv(4096).partition(b"\r\n\r\n")
        if b" 206 " not in head[:16]:
            raise RuntimeError(head.decode())
        buffer[: len(body)] = body
        at = len(body)
        while at < len(buffer):
            at += here.socket.recv_into(buffer[at:])

    def by_driver(start: int, buffer: memoryview) -> None:
        read_into(own, _KEY, start, buffer, condition=condition)

    def by_obstore(start: int, buffer: memoryview) -> None:
        at = 0
        options: GetOptions = {"range": (start, start + len(buffer))}
        for piece in obstore.get(bare, _KEY, options=options).stream(min_chunk_size=256 << 10):
            view = memoryview(piece)
            buffer[at : at + len(view)] = view
            at += len(view)

    return {"recv_into": by_socket, "sidetier": by_driver, "obstore": by_obstore}


def measure(fill: Fill, size: int, server: int) -> Measured:
    """Read `size` bytes in ranges."""
    ranges = iter([at % _OBJECT for at in range(0, size, 8 * _MIB)])
    guard = threading.Lock()

    def next_range() -> Iterator[int]:
        while True:
            with guard:
                start = next(ranges, None)
            if start is None:
                return
            yield start

    def work() -> None:
        buffer = memoryview(bytearray(8 * _MIB))
        for start in next_range():
            fill(start, buffer)

    threads = [threading.Thread(target=work) for _ in range(_THREADS)]
    before = processes.cpu_seconds(server), processes.cpu_seconds(os.getpid()), monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Measured(
        size,
        monotonic() - before[2],
        processes.cpu_seconds(os.getpid()) - before[1],
        processes.cpu_seconds(server) - before[0],
    )


@click.command()
@benchmark_options
def main(*, quick: bool, runs: int | None, record: bool, json_path: Path | None) -> None:
    """Read ranges of an object by different clients."""
    size, runs = (64 if quick else 512) * _MIB, runs or (1 if quick else 3)
    measured: dict[str, list[Measured]] = {}
    with work_directory() as directory, real_store(directory) as store:
        clients = fillers(store)
        for fill in clients.values():  # connections, and libraries that are imported when needed
            measure(fill, _THREADS * 8 * _MIB, store.server.process.pid)
        for number in range(runs):
            for name in list(clients) if number % 2 == 0 else list(reversed(clients)):
                read = measure(clients[name], size, store.server.process.pid)
                measured.setdefault(name, []).append(read)
    report = Report(
        "s3_ranges",
        "Ranges of an S3 server",
        _HOW.format(size=size // _MIB, threads=_THREADS, runs=runs),
    )
    report.table(
        ["client", "MB/s", "client CPU s/GiB", "server CPU s/GiB"],
        [
            [
                name,
                Spread.of(m.size / m.seconds / 1e6 for m in reads).text(0),
                Spread.of(m.client_cpu_seconds / m.size * _GIB for m in reads).text(),
                Spread.of(m.server_cpu_seconds / m.size * _GIB for m in reads).text(),
            ]
            for name, reads in measured.items()
        ],
    )
    report.targets.append(
        Target(
            "CPU s of sidetier, against obstore",
            Spread.of(
                own.client_cpu_seconds / other.client_cpu_seconds
                for own, other in zip(measured["sidetier"], measured["obstore"], strict=True)
            ).middle,
            0.7,
        )
    )
    report.raw = {name: [asdict(m) for m in reads] for name, reads in measured.items()}
    sys.exit(report.finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()
