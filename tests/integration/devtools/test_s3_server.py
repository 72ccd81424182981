"""The sandbox's S3 servers support what our store relies on: conditions and checksums."""

import base64
import zlib
from pathlib import Path

import pytest
from botocore.exceptions import ClientError, SSLError

from tests.harness.s3 import S3Bucket, S3ServerFactory, TlsIdentity, new_bucket, s3_client

pytestmark = pytest.mark.integration


def refused_with(error: pytest.ExceptionInfo[ClientError]) -> str:
    return error.value.response["Error"]["Code"]


def test_conditional_puts_are_supported(s3_bucket: S3Bucket) -> None:
    client, bucket = s3_bucket.client, s3_bucket.name
    first = client.put_object(Bucket=bucket, Key="a/b", Body=b"1", IfNoneMatch="*")["ETag"]
    with pytest.raises(ClientError) as again:
        client.put_object(Bucket=bucket, Key="a/b", Body=b"2", IfNoneMatch="*")
    assert refused_with(again) == "PreconditionFailed"
    client.put_object(Bucket=bucket, Key="a/b", Body=b"3", IfMatch=first)
    with pytest.raises(ClientError) as stale:
        client.put_object(Bucket=bucket, Key="a/b", Body=b"4", IfMatch=first)
    assert refused_with(stale) == "PreconditionFailed"
    assert client.get_object(Bucket=bucket, Key="a/b")["Body"].read() == b"3"


def test_wrong_checksum_is_refused(s3_bucket: S3Bucket) -> None:
    wrong = base64.b64encode(zlib.crc32(b"other bytes").to_bytes(4, "big")).decode()
    with pytest.raises(ClientError):
        s3_bucket.client.put_object(
            Bucket=s3_bucket.name, Key="k", Body=b"bytes", ChecksumCRC32=wrong
        )


def test_https_is_trusted_only_by_its_authority(
    s3_bucket_tls: S3Bucket, tls_identity: TlsIdentity
) -> None:
    assert s3_bucket_tls.server.endpoint_url.startswith("https://")
    s3_bucket_tls.client.put_object(Bucket=s3_bucket_tls.name, Key="k", Body=b"bytes")
    trusting = s3_client(s3_bucket_tls.server, tls_identity.authority)
    assert trusting.head_object(Bucket=s3_bucket_tls.name, Key="k")["ContentLength"] == 5
    with pytest.raises(SSLError):
        s3_client(s3_bucket_tls.server).list_buckets()


def test_objects_survive_a_kill_and_a_restart(own_s3_server: S3ServerFactory) -> None:
    server = own_s3_server()
    bucket = new_bucket(server)
    bucket.client.put_object(Bucket=bucket.name, Key="k", Body=b"bytes")
    server.kill()
    assert not server.process.running
    server.start()
    assert bucket.client.get_object(Bucket=bucket.name, Key="k")["Body"].read() == b"bytes"


def test_stop_leaves_no_process(own_s3_server: S3ServerFactory) -> None:
    server = own_s3_server()
    pid = server.process.pid
    server.stop()
    assert not Path(f"/proc/{pid}").exists()


def test_each_bucket_is_new(s3_bucket: S3Bucket) -> None:
    assert s3_bucket.client.list_objects_v2(Bucket=s3_bucket.name)["KeyCount"] == 0
