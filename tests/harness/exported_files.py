"""Tests of file exports: a job over a handmade archive, and the content of its output."""

import base64
import gzip
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from sidetier.config.archive_options import DEFAULT_MAX_BATCH_BYTES
from sidetier.pipeline.export.run import Terms
from sidetier.pipeline.export.sinks.files.engines import LocalEngine
from sidetier.pipeline.export.sinks.files.manifest import (
    Manifest,
    ManifestFile,
    decode_manifest,
    manifest_key,
)
from sidetier.pipeline.export.sinks.files.names import parse_file_name
from sidetier.pipeline.export.sinks.files.options import FilesOptions
from sidetier.pipeline.export.sinks.files.run import FilesRun, RunResult, files_read
from sidetier.pipeline.export.source import ArchiveSource, RequestedRange
from sidetier.pipeline.export.values.registry import RegistryConfig
from sidetier.pipeline.planning.planner import Planner
from sidetier.segments.isolation import IsolationLevel
from sidetier.segments.keys import ArchiveLayout
from sidetier.storage.port import RemoteStorage
from tests.harness.arrow_reading import expected
from tests.harness.made_archive import LAYOUT, URL, access_to

CLUSTER = "prod-a"
TERMS = frozenset(one.name for one in fields(Terms))
LAKE = "memory://lake"


@contextmanager
def files_job(  # noqa: PLR0913 -- most have a default
    archive: RemoteStorage,
    target: RemoteStorage,
    options: FilesOptions,
    *,
    topic: str = "orders",
    layout: ArchiveLayout = LAYOUT,
    asked: RequestedRange | None = None,
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
    registry: RegistryConfig | None = None,
    with_tail: bool = False,
    **changes: Any,  # noqa: ANN401 -- fields of the run, or of its terms
) -> Iterator[FilesRun]:
    """Yield a job on one thread, from one open store to another."""
    access = access_to(archive, layout)
    with (
        Planner(access, threads=1, with_tail=with_tail, pack_age=0.0) as planner,
        LocalEngine(
            access, target, workers=1, max_batch_bytes=max_batch_bytes, registry=registry
        ) as engine,
    ):
        terms = {name: changes.pop(name) for name in TERMS & changes.keys()}
        request = files_read(topic, IsolationLevel(options.isolation))
        yield FilesRun(
            ArchiveSource(CLUSTER, planner, request, asked),
            Terms(**terms),
            topic,
            options,
            ManifestFile(target, manifest_key(options.topics_dir, topic), LAKE),
            engine,
            None if asked is None else str(asked),
            **changes,
        )


def run_once(job: FilesRun) -> RunResult | None:
    """Commit once with the loop that production runs; return None if nothing was new."""
    results: list[RunResult] = []
    replace(job, report=results.append).commit_all(lambda: bool(results))
    return results[0] if results else None


def new_run(job: FilesRun) -> RunResult:
    """Commit once, and return the result of the run."""
    result = run_once(job)
    assert result is not None, "nothing is new"
    return result


def manifest_in(
    objects: Mapping[str, bytes], topic: str = "orders", below: str = "topics"
) -> Manifest:
    """Return the manifest of an output."""
    key = manifest_key(below, topic)
    return decode_manifest(objects[key], f"{URL}/{key}")


def data_files(objects: Mapping[str, bytes], below: str = "topics/") -> dict[str, bytes]:
    """Return every data file of the output by its key."""
    names = {key: key.rpartition("/")[2] for key in sorted(objects) if key.startswith(below)}
    return {
        key: objects[key]
        for key, name in names.items()
        if parse_file_name(name, name.partition("+")[0]) is not None
    }


def rows_of(key: str, data: bytes) -> list[dict[str, Any]]:
    """Return the rows of a file, in the format of its suffix."""
    if key.endswith(".gz"):
        return rows_of(key.removesuffix(".gz"), gzip.decompress(data))
    if key.endswith(".parquet"):
        table = pq.read_table(io.BytesIO(data))
        table.validate(full=True)
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows
    if key.endswith(".avro"):
        return list(fastavro.reader(io.BytesIO(data)))  # type: ignore[arg-type]
    return [json.loads(line) for line in data.splitlines()]


def as_consumed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of Parquet in the form of the fixtures, without the leader epoch."""
    return {
        "offset": row["offset"],
        "timestamp": round(row["timestamp"].timestamp() * 1000),
        "timestamp_type": ("CreateTime", "LogAppendTime")[row["timestampType"]],
        "key": _text(row["key"]),
        "value": _text(row["value"]),
        "headers": [[header["key"], _text(header["value"])] for header in row["headers"]],
    }


def consumed_below(directory: Path, isolation: str, end: int) -> list[dict[str, Any]]:
    """Return what a real broker's consumer read below an offset, as in `as_consumed`."""
    rows = [row for row in expected(directory, isolation) if row["offset"] < end]
    return [{name: row[name] for name in row if name != "leader_epoch"} for row in rows]


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def offsets_in(objects: Mapping[str, bytes]) -> Counter[tuple[int, int]]:
    """Count how often each Kafka offset is in the files that a reader of the output sees."""
    return Counter(
        (row["partition"], row["offset"])
        for key, data in data_files(objects).items()
        for row in rows_of(key, data)
    )


def parquet_schema(data: bytes) -> pa.Schema:
    """Return the schema of a file."""
    return pq.read_schema(io.BytesIO(data))
