"""Reads objects with ranged GETs of boto3 and drops the bytes: the upper limit of a verification.

A separate script: `plain_read.py RANGE_BYTES AT_ONCE BUCKET ENDPOINT REGION`, with lines of key and
size on its standard input, and the credentials in BENCH_ACCESS_KEY and BENCH_SECRET_KEY.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
from botocore.config import Config


def main() -> None:
    """Read every object, one thread for each of the objects that are read at the same time."""
    range_bytes, at_once = int(sys.argv[1]), int(sys.argv[2])
    bucket, endpoint, region = sys.argv[3:6]
    client: Any = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id=os.environ["BENCH_ACCESS_KEY"],
        aws_secret_access_key=os.environ["BENCH_SECRET_KEY"],
        config=Config(max_pool_connections=at_once, s3={"addressing_style": "path"}),
    )
    objects = [(key, int(size)) for key, size in map(str.split, sys.stdin)]

    def read(key: str, size: int) -> None:
        for start in range(0, size, range_bytes):
            end = min(start + range_bytes, size)
            answer = client.get_object(Bucket=bucket, Key=key, Range=f"bytes={start}-{end - 1}")
            if len(answer["Body"].read()) != end - start:
                raise OSError(f"{key}: the store has fewer bytes than it has listed")

    with ThreadPoolExecutor(at_once) as readers:
        for _ in readers.map(lambda row: read(*row), objects):
            """Let errors show."""


if __name__ == "__main__":
    main()
