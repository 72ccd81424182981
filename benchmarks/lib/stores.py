"""Stores for a measured sidecar: versitygw, a directory, or the stand-in."""

import http.client
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import boto3
import trustme
from botocore.config import Config

from devtools.sandbox.s3server import S3Server, TlsCertificate
from lib import stand_in_server
from lib.log_dirs import LogDir
from lib.processes import give_way
from lib.sidecar import CLUSTER
from sidetier.archive.objects.watermark import decode_watermark
from sidetier.brokers.ports import HOST, free_port, is_listening
from sidetier.brokers.processes import Command, ManagedProcess
from sidetier.segments.errors import MalformedObjectError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import Offset, TopicPartition

BUCKET = "bench"
LAYOUT = ArchiveLayout(CLUSTER, 5)


@dataclass(frozen=True, slots=True)
class RealStore:
    """A bucket of versitygw, which stores each object as a file."""

    server: S3Server
    authority: Path | None

    @property
    def storage(self) -> dict[str, Any]:
        """The sidecar's setting `storage`."""
        options: dict[str, Any] = {
            "endpoint_url": self.server.endpoint_url,
            "region": self.server.region,
            "path_style": True,
            "access_key_id": {"env": "BENCH_ACCESS_KEY"},
            "secret_access_key": {"env": "BENCH_SECRET_KEY"},
        }
        if self.authority is not None:
            options["ca_bundle"] = str(self.authority)
        return {"url": f"s3://{BUCKET}", "s3": options}

    @property
    def reader_options(self) -> dict[str, str]:
        """Options `tiered.storage.*` of `TieredConsumer` and of Spark."""
        s3 = "tiered.storage.s3."
        return {
            **_location(self.storage),
            f"{s3}endpoint.url": self.server.endpoint_url,
            f"{s3}region": self.server.region,
            f"{s3}path.style": "true",
            f"{s3}access.key.id": "env:BENCH_ACCESS_KEY",
            f"{s3}secret.access.key": "env:BENCH_SECRET_KEY",
        }

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with the keys, for the sidecar."""
        return {
            "BENCH_ACCESS_KEY": self.server.access_key,
            "BENCH_SECRET_KEY": self.server.secret_key,
        }

    @property
    def bucket(self) -> Path:
        """Directory of the bucket's objects."""
        return self.server.directory / "buckets" / BUCKET

    def client(self) -> Any:  # noqa: ANN401 - boto3 creates its classes at run time
        """Return a client of the server."""
        return boto3.client(
            "s3",
            endpoint_url=self.server.endpoint_url,
            aws_access_key_id=self.server.access_key,
            aws_secret_access_key=self.server.secret_key,
            region_name=self.server.region,
            verify=None if self.authority is None else str(self.authority),
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )

    def clear(self) -> None:
        """Remove all objects."""
        for path in self.bucket.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def stored_up_to(self, tp: TopicPartition) -> Offset:
        """Return the archive end offset; 0 without `offset.wm`, or while it is being written."""
        return _stored_up_to(self.bucket, tp)

    def holds_all_of(self, log_dir: LogDir) -> bool:
        """Return whether the archive end of each partition covers every closed segment."""
        shape = log_dir.shape
        return all(self.stored_up_to(tp) >= shape.next_offset for tp in shape.topic_partitions())

    def holds_any_segment(self) -> bool:
        """Return whether a file of a segment is stored."""
        return next(self.bucket.rglob("*index"), None) is not None

    def check_objects(self, log_dir: LogDir) -> None:
        """Raise RuntimeError unless every closed file is stored with its size."""
        for path in log_dir.closed_files():
            prefix = next(
                LAYOUT.partition_prefix(tp)
                for tp in log_dir.shape.topic_partitions()
                if str(tp) == path.parent.name
            )
            stored = self.bucket / prefix / path.name
            if stored.stat().st_size != path.stat().st_size:
                raise RuntimeError(f"{stored} is not as large as {path}")


@dataclass(frozen=True, slots=True)
class FileStore:
    """A directory of the file-system store."""

    directory: Path

    @property
    def storage(self) -> dict[str, Any]:
        """The sidecar's setting `storage`."""
        return {"url": f"file://{self.directory}"}

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables: none."""
        return {}

    @property
    def reader_options(self) -> dict[str, str]:
        """Options `tiered.storage.*` like `RealStore.reader_options`."""
        return _location(self.storage)

    def stored_up_to(self, tp: TopicPartition) -> Offset:
        """Return the archive end offset like `RealStore.stored_up_to`."""
        return _stored_up_to(self.directory, tp)


def _location(storage: Mapping[str, Any]) -> dict[str, str]:
    return {
        "tiered.storage.url": storage["url"],
        "tiered.storage.cluster.name": CLUSTER,
        "tiered.storage.prefix.entropy.bits": str(LAYOUT.bits),
    }


def _stored_up_to(directory: Path, tp: TopicPartition) -> Offset:
    path = directory / LAYOUT.watermark_key(tp)
    try:
        return decode_watermark(path.read_bytes(), str(path)).next_offset or Offset(0)
    except (FileNotFoundError, MalformedObjectError):
        return Offset(0)


@contextmanager
def real_store(directory: Path, *, https: bool = False) -> Iterator[RealStore]:
    """Yield a running versitygw with an empty bucket."""
    pair, authority = certificate(directory) if https else (None, None)
    with S3Server(directory, certificate=pair) as server:
        store = RealStore(server, authority)
        store.client().create_bucket(Bucket=BUCKET)
        yield store


def certificate(directory: Path) -> tuple[TlsCertificate, Path]:
    """Write a certificate for this host with its key, and return them and their authority."""
    directory.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    leaf = authority.issue_cert(HOST, "localhost")
    chain, key, root = (directory / name for name in ("server.pem", "server.key", "ca.pem"))
    chain.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    leaf.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(root))
    return TlsCertificate(chain, key), root


class StandIn:
    """The `stand_in_server` in a separate process."""

    def __init__(self, directory: Path, delay: float = 0.0, *, gives_way: bool = False) -> None:
        self._port = free_port()
        script = Path(stand_in_server.__file__)
        self._gives_way = gives_way
        line = [sys.executable, str(script), str(self._port), str(delay)]
        self.process = ManagedProcess(Command("the stand-in", line, directory / "stand-in.log"))
        self.environment = {"BENCH_ACCESS_KEY": "any", "BENCH_SECRET_KEY": "any"}
        self.storage: dict[str, Any] = {
            "url": f"s3://{BUCKET}",
            "s3": {
                "endpoint_url": f"http://{HOST}:{self._port}",
                "region": "us-east-1",
                "path_style": True,
                "access_key_id": {"env": "BENCH_ACCESS_KEY"},
                "secret_access_key": {"env": "BENCH_SECRET_KEY"},
            },
        }

    def __enter__(self) -> Self:
        self.process.start()
        if self._gives_way:
            give_way(self.process.pid)
        self.process.wait_until(lambda: is_listening(self._port), 20)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()

    def counts(self) -> dict[str, int]:
        """Return the requests by kind since the last reset."""
        answer: dict[str, dict[str, int]] = json.loads(self._ask("GET", "/-/counts"))
        return answer["requests"]

    def received_bytes(self) -> int:
        """Return the bytes of bodies since the last reset, unfinished ones included."""
        received: int = json.loads(self._ask("GET", "/-/counts"))["body_bytes"]
        return received

    @property
    def url(self) -> str:
        """URL of the bucket."""
        return f"http://{HOST}:{self._port}/{BUCKET}"

    def reset(self) -> None:
        """Reset the counts to 0."""
        self._ask("POST", "/-/reset")

    def clear(self) -> None:
        """Remove all objects."""
        self._ask("POST", "/-/clear")

    def set_delay(self, seconds: float) -> None:
        """Set the delay of later requests."""
        self._ask("POST", f"/-/delay?{seconds}")

    def put_all(self, objects: Iterator[tuple[str, bytes]]) -> None:
        """Store objects by key."""
        connection = http.client.HTTPConnection(HOST, self._port, timeout=30)
        for key, data in objects:
            connection.request("PUT", f"/{BUCKET}/{key}", data)
            connection.getresponse().read()
        connection.close()

    def create_all(self, sizes: Iterator[tuple[str, int]]) -> None:
        """Create objects by key and size at once. Their bytes cannot be read."""
        lines = "".join(f"{key} {size}\n" for key, size in sizes)
        self._ask("POST", "/-/objects", lines.encode())

    def _ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=30)
        connection.request(method, path, body)
        answer = connection.getresponse().read()
        connection.close()
        return answer
