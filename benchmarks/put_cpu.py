"""CPU seconds per GiB of one client putting 64 MiB objects: this store beside curl.

    python benchmarks/put_cpu.py [--tls] [--objects 16] [--rounds 3]

Starts an S3 server of its own. Both send unsigned payloads, one object after the other. curl does
not compute a checksum; the store does, so it reads each file twice.
"""

import argparse
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import boto3
from botocore.config import Config

from sidetier.sandbox.s3server import S3Server
from sidetier.storage.bodies import FileBody
from sidetier.storage.s3 import S3Storage
from sidetier.storage.s3_client import make_client
from sidetier.storage.settings import GIB, MIB, AttemptDeadline, Credentials, S3Settings
from tests.harness.s3 import make_tls_identity

SIZE = 64 * MIB


def _cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def _measure(who: int, objects: int, put: Callable[[int], None]) -> tuple[float, float]:
    """(CPU seconds per GiB, MB/s)."""
    cpu, began = _cpu(who), time.monotonic()
    for number in range(objects):
        put(number)
    seconds = time.monotonic() - began
    return (_cpu(who) - cpu) / (objects * SIZE / GIB), objects * SIZE / 1e6 / seconds


def main() -> None:
    """Measure, and print a line per round and the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--objects", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        identity = make_tls_identity(directory) if chosen.tls else None
        source = directory / "source"
        with Path("/dev/urandom").open("rb") as noise:
            source.write_bytes(noise.read(SIZE))
        certificate = identity.certificate if identity else None
        with S3Server(directory / "server", certificate=certificate) as server:
            authority = identity.authority if identity else None
            ratios = [
                _round(server, authority, source, chosen.objects) for _ in range(chosen.rounds)
            ]
    print(f"median ratio of CPU per GiB: {statistics.median(ratios):.2f}")


def _round(server: S3Server, authority: Path | None, source: Path, objects: int) -> float:
    settings = S3Settings(
        endpoint_url=server.endpoint_url,
        region=server.region,
        path_style=True,
        credentials=Credentials(server.access_key, server.secret_key),
        ca_bundle=authority,
    )
    client = make_client(settings, AttemptDeadline())
    if "bench" not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
        client.create_bucket(Bucket="bench")
    store = S3Storage(client, "bench", "", settings)
    body = FileBody.of(source)
    store.put_object("warm", body)
    ours = _measure(
        resource.RUSAGE_SELF, objects, lambda number: _ignore(store.put_object(f"s{number}", body))
    )
    urls = [_presigned(settings, f"c{number}") for number in range(objects)]
    trust = ["--cacert", str(authority)] if authority else []
    curl = _measure(
        resource.RUSAGE_CHILDREN,
        objects,
        lambda number: _ignore(
            subprocess.run(["curl", "-sf", *trust, "-T", str(source), urls[number]], check=True)
        ),
    )
    print(f"store {ours[0]:.2f} s/GiB {ours[1]:.0f} MB/s   curl {curl[0]:.2f} {curl[1]:.0f} MB/s")
    return ours[0] / curl[0]


def _presigned(settings: S3Settings, key: str) -> str:
    keys = settings.credentials or Credentials("", "")
    client = boto3.client(
        "s3",
        endpoint_url=settings.endpoint_url,
        aws_access_key_id=keys.access_key_id,
        aws_secret_access_key=keys.secret_access_key,
        region_name=settings.region,
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )
    return client.generate_presigned_url("put_object", Params={"Bucket": "bench", "Key": key})


def _ignore(_: object) -> None:
    """A result that nobody needs."""


if __name__ == "__main__":
    main()
