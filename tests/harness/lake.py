"""Exports of files to a real S3 server, by drivers that can be killed at a chosen request."""

import io
import json
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from devtools.sandbox.spark import SPARK_4
from sidetier.brokers.processes import Command, ManagedProcess
from sidetier.cli.export import submit
from sidetier.pipeline.export.sinks.files.manifest import MANIFEST_NAME
from tests.harness.s3 import S3Bucket
from tests.harness.s3_proxy import Fault, Rule, S3Proxy, _Handler
from tests.harness.table_exports import GrowingArchive

SECONDS = 300.0
SPARK = ("--master", "local[2]")


def quick_session() -> dict[str, str]:
    """Return environment variables for a Spark session that an export starts by itself.

    A function, because the flags depend on the Java of this machine, and may find none.
    """
    arguments = (
        f"--driver-memory 600m --driver-java-options '{SPARK_4.jvm_flags}' "
        "--conf spark.ui.enabled=false "
        "--conf spark.driver.host=127.0.0.1 --conf spark.driver.bindAddress=127.0.0.1 pyspark-shell"
    )
    return {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_SUBMIT_ARGS": arguments}


@dataclass(slots=True)
class Lake:
    """A bucket behind a proxy, and an archive in a directory."""

    root: Path
    archive: GrowingArchive
    bucket: S3Bucket
    proxy: S3Proxy
    started: int = 0

    def __post_init__(self) -> None:
        self.into_config.write_text(yaml.safe_dump(self.settings()))
        (self.root / "key").write_text(self.bucket.server.access_key)
        (self.root / "secret").write_text(self.bucket.server.secret_key)

    @property
    def into_config(self) -> Path:
        return self.root / "lake.yaml"

    def settings(self) -> dict[str, Any]:
        """Return the settings of the output, for `--into-config`."""
        return {
            "url": f"s3://{self.bucket.name}/lake",
            "s3": {
                "endpoint_url": self.proxy.url,
                "region": self.bucket.server.region,
                "path_style": True,
                "access_key_id": {"file": str(self.root / "key")},
                "secret_access_key": {"file": str(self.root / "secret")},
            },
            "retry": {"attempts": 3, "max_elapsed": "20s"},
        }

    def line(self, *options: str) -> list[str]:
        """Return the command line of an export of every topic in the archive."""
        line = ["export", "files", *self.archive.topics, "--config", str(self.archive.config)]
        # The fixtures end in an open transaction, with markers years newer than its records.
        line += ["--into-config", str(self.into_config), "--transaction-timeout", "99999h"]
        return [*line, "--output", "json", *options]

    @contextmanager
    def driver(
        self,
        *options: str,
        program: Sequence[str] = (sys.executable, "-m", "sidetier.cli"),
        environment: Mapping[str, str] | None = None,
    ) -> Iterator[ManagedProcess]:
        """Yield an exporting process, which is killed at the end of the block if it still runs."""
        self.started += 1
        log = self.root / f"driver-{self.started}.log"
        arguments = [*program, *self.line(*options)]
        process = ManagedProcess(
            Command("driver", arguments, log, environment or quick_session(), self.root)
        )
        process.start()
        try:
            yield process
        finally:
            process.kill()

    def export(self, *options: str, code: int = 0) -> str:
        """Run an export to its end, and return its output."""
        with self.driver(*options) as process:
            assert process.wait(SECONDS) == code, process.log_tail(60)
            return process.command.log.read_text()

    def submit(self, *options: str) -> None:
        """Run an export to its end with spark-submit."""
        tool = Path(sys.executable).parent / "spark-submit"
        program = (
            str(tool),
            "--master",
            "local[2]",
            "--driver-memory",
            "600m",
            "--driver-java-options",
            SPARK_4.jvm_flags,
            str(submit.__file__),
        )
        line = ("--master", "submit", *options)
        # Without spark-submit, an export finds the Python by itself.
        environment = {**quick_session(), "PYSPARK_PYTHON": sys.executable}
        with self.driver(*line, program=program, environment=environment) as process:
            assert process.wait(SECONDS) == 0, process.log_tail(60)

    def objects(self, below: str = "lake/") -> dict[str, bytes]:
        """Return the objects in the bucket, by keys relative to the URL."""
        contents: dict[str, bytes] = {}
        pages = self.bucket.client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self.bucket.name, Prefix=below):
            for row in page.get("Contents", []):
                answer = self.bucket.client.get_object(Bucket=self.bucket.name, Key=row["Key"])
                contents[row["Key"].removeprefix("lake/")] = answer["Body"].read()
        return contents


def at_nth_put(nth: int, part: str, fault: Fault) -> Rule:
    """Return a rule with the fault for the nth write from now on of a key with this part; once."""
    lock = threading.Lock()
    count = 0

    def rule(method: str, key: str) -> Fault | None:
        nonlocal count
        with lock:
            count += method == "PUT" and part in key
            return fault if method == "PUT" and part in key and count == nth else None

    return rule


def kill_before(victim: ManagedProcess) -> Fault:
    """Return a fault that kills the driver before the request takes effect."""

    def fault(handler: _Handler) -> None:
        victim.kill()
        handler.cut()

    return fault


def kill_during(victim: ManagedProcess) -> Fault:
    """Return a fault that kills the driver while its request takes effect."""

    def fault(handler: _Handler) -> None:
        body = handler.read_body()
        victim.kill()
        handler.forward(body)
        handler.cut()

    return fault


def kill_after(victim: ManagedProcess) -> Fault:
    """Return a fault that kills the driver once the answer is sent."""

    def fault(handler: _Handler) -> None:
        with suppress(OSError):
            handler.pass_on()
        victim.kill()

    return fault


def at_state(fault: Fault) -> Rule:
    """Return a rule with the fault for the write of a manifest that marks a run as ended."""

    def look(handler: _Handler) -> None:
        body = handler.read_body()
        if json.loads(body)["pending"] is not None:
            handler.pass_on(body)
            return
        handler.rfile = io.BytesIO(body)
        fault(handler)

    return lambda method, key: look if method == "PUT" and key.endswith(MANIFEST_NAME) else None


def told(text: str) -> Any:  # noqa: ANN401  JSON
    """Return the JSON result in a driver's output."""
    return json.loads(text[text.index("{\n") : text.rindex("}") + 1])
