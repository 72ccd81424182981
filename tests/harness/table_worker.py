"""A program on a Spark of its own: exports, reads tables, and dies where it is told to.

`python -m tests.harness.table_worker` reads one JSON object a line, and answers each with a line
that begins with `ANSWER `. The session is kept from one command to the next, since it takes long to
start.
"""

import base64
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from sidetier.cli.export import table_session
from sidetier.cli.main import run
from sidetier.pipeline.export.tables.iceberg.metadata import IcebergMetadata
from sidetier.pipeline.export.tables.iceberg.table import IcebergTable

_LOOK_SECONDS = 0.002
_kept: dict[str, SparkSession] = {}


@contextmanager
def _kept_session(
    master: str, name: str, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    if not _kept:
        builder = SparkSession.builder.master(master).appName(name)
        for key, value in {"spark.log.level": "ERROR", **(conf or {})}.items():
            builder = builder.config(key, value)
        _kept["session"] = builder.getOrCreate()
    yield _kept["session"]


def _die(*_: object) -> None:
    """The whole driver at once: Python, and the Java beside it."""
    os.killpg(0, signal.SIGKILL)


def _die_after(owner: type, method: str) -> None:
    real: Callable[..., object] = getattr(owner, method)

    def fatal(*given: object) -> None:
        real(*given)
        _die()

    setattr(owner, method, fatal)


def _die_on_new_file(directory: Path, pattern: str) -> None:
    known = set(directory.glob(pattern))
    never = threading.Event()

    def look() -> None:
        while set(directory.glob(pattern)) <= known:
            never.wait(_LOOK_SECONDS)
        _die()

    threading.Thread(target=look, daemon=True).start()


def _hold(path: Path) -> None:
    """Publish only once the file is there."""
    real: Callable[..., None] = IcebergTable._publish
    never = threading.Event()

    def held(self: IcebergTable, *given: object) -> None:
        path.with_suffix(".reached").touch()
        while not path.exists():
            never.wait(_LOOK_SECONDS)
        IcebergTable._publish = real  # type: ignore[method-assign]
        real(self, *given)

    IcebergTable._publish = held  # type: ignore[method-assign]


def _die_at(given: Mapping[str, Any]) -> None:
    if "file" in given:
        _die_on_new_file(Path(given["directory"]), given["file"])
    elif "seconds" in given:
        timer = threading.Timer(given["seconds"], _die)
        timer.daemon = True
        timer.start()
    else:
        owner = {"staged": (IcebergTable, "_stage"), "published": (IcebergMetadata, "publish")}
        _die_after(*owner[given["step"]])


def _rows(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    spark = _kept["session"]
    table = given["table"]
    loaded = spark.read.format(given["format"]).load(table)
    kept = [name for name in loaded.columns if not name.startswith("_hoodie")]
    columns = [
        F.unix_millis("timestamp").alias(name) if name == "timestamp" else name for name in kept
    ]
    rows = loaded.select(*columns).orderBy("topic", "partition", "offset").collect()
    return [row.asDict(recursive=True) for row in rows]


def _sql(text: str) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in _kept["session"].sql(text).collect()]


def _append(table: str, properties: Mapping[str, str]) -> str:
    """A commit of nothing, which says what it is told to."""
    writer = _kept["session"].table(table).limit(0).writeTo(table)
    for name, value in properties.items():
        writer = writer.option(f"snapshot-property.{name}", value)
    writer.append()
    return "appended"


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    return str(value)


def _answer(command: Mapping[str, Any]) -> object:
    if "die" in command:
        _die_at(command["die"])
    if "hold" in command:
        _hold(Path(command["hold"]))
    if "export" in command:
        return run(["export", *command["export"]])
    if "append" in command:
        return _append(**command["append"])
    if "rows" in command:
        return _rows(command["rows"])
    return _sql(command["sql"])


def main() -> None:
    vars(table_session)["spark_session"] = _kept_session
    for line in sys.stdin:
        answer = _answer(json.loads(line))
        sys.stdout.write(f"\nANSWER {json.dumps(answer, default=_plain)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
