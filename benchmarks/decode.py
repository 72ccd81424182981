"""Decode record batches into Arrow: records per CPU second, by size of record and batch."""

import random
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time

import click
import cramjam
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder
from lib.options import benchmark_options
from lib.results import Report, Spread, Target

from sidetier.segments.arrow import PIECE_BYTES, decode_in_pieces, scan_headers
from sidetier.segments.crc import crc32c
from sidetier.segments.headers import HEADER_BYTES, LENGTH_PREFIX_BYTES, Compression

_MIB = 1 << 20
_START_MS = 1_700_000_000_000
_HOW = """\
A log of {size} MiB in memory, of records of the given size with a key of 10 bytes (values of random
bytes whose lengths vary by a fifth; half of each is text where it is compressed), in batches of the
given size, is decoded into all ten Arrow columns, in pieces of {piece} MiB, every CRC checked. CPU
seconds are of the whole process, all threads. kafka-python decodes {part} of the same into its own
objects, without a check of the CRC, which it does in plain Python. {runs} runs in turns, one thread
of work. "Even" marks records of one size."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Contents of the log; sizes in bytes."""

    record: int
    batch: int
    codec: Compression = Compression.NONE
    vary: bool = True

    def __str__(self) -> str:
        codec = "" if self.codec is Compression.NONE else f", {self.codec.name.lower()}"
        return f"{_size(self.record)} in {_size(self.batch)}{'' if self.vary else ', even'}{codec}"


@dataclass(frozen=True, slots=True)
class Found:
    """One run: records per CPU second, and bytes of the log per CPU second."""

    shape: str
    decoder: str
    records: float
    bytes: float


_SHAPES = (
    Shape(100, 16 << 10),
    Shape(100, _MIB),
    Shape(100, _MIB, vary=False),
    Shape(100, 16 * _MIB),
    Shape(1024, 16 << 10),
    Shape(1024, _MIB),
    Shape(10 << 10, 16 << 10),
    Shape(10 << 10, _MIB),
    *(Shape(1024, _MIB, codec) for codec in Compression if codec is not Compression.NONE),
)
_LIMITS = {  # thousand records per CPU second
    "100 B in 16 KiB": 3000,
    "100 B in 1 MiB": 1500,
    "1 KiB in 16 KiB": 1000,
    "1 KiB in 1 MiB": 1000,
}


def _size(size: int) -> str:
    for factor, unit in ((_MIB, "MiB"), (1 << 10, "KiB")):
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def make_log(shape: Shape, size: int) -> bytes:
    """Return a log of about this size: a few distinct batches, repeated under other offsets."""
    generator = random.Random(f"{shape}")
    kinds = [_batch(shape, generator) for _ in range(max(1, min(8, size // shape.batch)))]
    parts, total, offset = [], 0, 0
    while total < size:
        count, batch = kinds[len(parts) % len(kinds)]
        parts.append(offset.to_bytes(8) + batch[8:])  # the CRC does not cover the base offset
        offset += count
        total += len(batch)
    return b"".join(parts)


def _batch(shape: Shape, generator: random.Random) -> tuple[int, bytes]:
    """Return the number of records, and a batch compressed with the shape's codec."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=shape.batch,
    )
    count = 0
    while True:
        length = shape.record - 10
        if shape.vary:
            length += generator.randint(-length // 5, length // 5)
        value = generator.randbytes(length)
        if shape.codec is not Compression.NONE:
            value = generator.randbytes(length // 2) + b"some text " * (length // 20)
        key, timestamp = f"{count:010d}".encode(), _START_MS + count // 3
        if builder.append(count, timestamp, key, value, []) is None:
            break
        count += 1
    return count, _compressed(bytes(builder.build()), shape.codec)


def _compressed(batch: bytes, codec: Compression) -> bytes:
    if codec is Compression.NONE:
        return batch
    body = bytes(_CODECS[codec](batch[HEADER_BYTES:]))
    encoded = bytearray(batch[:HEADER_BYTES] + body)
    encoded[8:12] = (len(encoded) - LENGTH_PREFIX_BYTES).to_bytes(4)
    encoded[22] |= codec.value
    encoded[17:21] = crc32c(memoryview(encoded)[21:]).to_bytes(4)
    return bytes(encoded)


_CODECS: dict[Compression, Callable[[bytes], cramjam.Buffer]] = {
    Compression.GZIP: cramjam.gzip.compress,
    Compression.SNAPPY: cramjam.snappy.compress_raw,
    Compression.LZ4: cramjam.lz4.compress,
    Compression.ZSTD: lambda data: cramjam.zstd.compress(data, level=3),
}


def decode_all(log: bytes) -> int:
    """Decode every column of every record, and return the number of records."""
    headers = scan_headers(log)
    return sum(piece.num_rows for piece in decode_in_pieces(log, headers))


def decode_by_peer(log: bytes) -> int:
    """Decode into objects with kafka-python."""
    count, records = 0, MemoryRecords(log)
    while (batch := records.next_batch()) is not None:
        for record in batch:
            if record.value is None:
                raise ValueError("a record without a value")
            count += 1
    return count


def measure(shape: Shape, decoder: str, decode: Callable[[bytes], int], log: bytes) -> Found:
    """Measure one run over the whole log."""
    began = process_time()
    records = decode(log)
    seconds = process_time() - began
    result = Found(str(shape), decoder, records / seconds, len(log) / seconds)
    print(result, file=sys.stderr)
    return result


def _report(found: list[Found], how: str, *, quick: bool) -> Report:
    report = Report("decode", "Decoding record batches into Arrow", how)
    rates = {
        (run.shape, run.decoder): Spread.of(
            result.records / 1e3
            for result in found
            if (result.shape, result.decoder) == (run.shape, run.decoder)
        )
        for run in found
    }
    speeds = {run.shape: run.bytes / _MIB for run in found if run.decoder == "sidetier"}
    report.table(
        ["records", "sidetier, thousand per CPU s", "MiB per CPU s", "kafka-python", "times"],
        [
            [
                shape,
                rates[shape, "sidetier"].text(0),
                f"{speed:.0f}",
                rates[shape, "kafka-python"].text(0) if (shape, "kafka-python") in rates else "",
                _times(rates, shape),
            ]
            for shape, speed in speeds.items()
        ],
    )
    report.targets = [
        Target(
            f"{shape}: thousand records per CPU second",
            rates[shape, "sidetier"].middle,
            limit / 10 if quick else limit,
            at_least=True,
        )
        for shape, limit in _LIMITS.items()
    ]
    report.raw = {"runs": [asdict(run) for run in found]}
    return report


def _times(rates: dict[tuple[str, str], Spread], shape: str) -> str:
    kafka_python = rates.get((shape, "kafka-python"))
    return f"{rates[shape, 'sidetier'].middle / kafka_python.middle:.1f}" if kafka_python else ""


@click.command()
@benchmark_options
def main(*, quick: bool, runs: int | None, record: bool, json_path: Path | None) -> None:
    """Decode record batches into Arrow, against kafka-python's decoder."""
    times = runs or (1 if quick else 5)
    size, part = (16, 4) if quick else (256, 16)
    results = []
    for shape in _SHAPES:
        log = make_log(shape, size * _MIB)
        less = make_log(shape, part * _MIB)
        decode_all(less)  # warm-up: imports and first allocations
        for _ in range(times):
            results.append(measure(shape, "sidetier", decode_all, log))
            if shape.codec is Compression.NONE:
                results.append(measure(shape, "kafka-python", decode_by_peer, less))
    how = _HOW.format(size=size, part=f"{part} MiB", piece=PIECE_BYTES // _MIB, runs=times)
    sys.exit(_report(results, how, quick=quick).finish(record=record, json_path=json_path))


if __name__ == "__main__":
    main()
