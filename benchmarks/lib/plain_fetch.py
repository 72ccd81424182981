"""Downloads objects into files with ranged GETs of boto3 only: a restore's upper limit.

A separate script: `plain_fetch.py DIRECTORY RANGE_BYTES AT_ONCE BUCKET ENDPOINT REGION`, with lines
of key and size on its standard input, and the credentials in BENCH_ACCESS_KEY and BENCH_SECRET_KEY.
Each file is durable when it ends.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

_FILES_AT_ONCE = 4


def main() -> None:
    """Download every object."""
    directory, range_bytes, at_once = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    bucket, endpoint, region = sys.argv[4:7]
    client: Any = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id=os.environ["BENCH_ACCESS_KEY"],
        aws_secret_access_key=os.environ["BENCH_SECRET_KEY"],
        config=Config(max_pool_connections=at_once, s3={"addressing_style": "path"}),
    )
    objects = [(key, int(size)) for key, size in map(str.split, sys.stdin)]

    def fetch(key: str, file: int, start: int, end: int) -> None:
        answer = client.get_object(Bucket=bucket, Key=key, Range=f"bytes={start}-{end - 1}")
        if os.pwrite(file, answer["Body"].read(), start) != end - start:
            raise OSError(f"{key}: the store has fewer bytes than it has listed")

    def fetch_whole(number: int, key: str, size: int) -> None:
        file = os.open(directory / str(number), os.O_WRONLY | os.O_CREAT)
        try:
            starts = range(0, size, range_bytes)
            ranges = [(start, min(start + range_bytes, size)) for start in starts]
            for _ in readers.map(lambda borders: fetch(key, file, *borders), ranges):
                """Let errors show."""
            os.fsync(file)
        finally:
            os.close(file)

    with ThreadPoolExecutor(at_once) as readers, ThreadPoolExecutor(_FILES_AT_ONCE) as files:
        numbered = [(number, key, size) for number, (key, size) in enumerate(objects)]
        for _ in files.map(lambda row: fetch_whole(*row), numbered):
            """Let errors show."""


if __name__ == "__main__":
    main()
