"""Buckets, clients and certificates for the sandbox's S3 servers."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import boto3
import trustme
from botocore.config import Config
from mypy_boto3_s3 import S3Client

from devtools.sandbox.s3server import S3Server, TlsCertificate
from sidetier.brokers.ports import HOST

S3ServerFactory = Callable[[], S3Server]
"""Starts a server, and returns it once it answers."""


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """Certificate of an HTTPS server, and the authority (a PEM file) by which clients trust it."""

    certificate: TlsCertificate
    authority: Path


@dataclass(frozen=True, slots=True)
class S3Bucket:
    """A bucket, its server, and a client to inspect it from outside."""

    server: S3Server
    name: str
    client: S3Client


def s3_client(server: S3Server, authority: Path | None = None) -> S3Client:
    """Return a client with path-style addresses, and without retries that hide faults."""
    return boto3.client(
        "s3",
        endpoint_url=server.endpoint_url,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name=server.region,
        verify=None if authority is None else str(authority),
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )


def new_bucket(server: S3Server, authority: Path | None = None) -> S3Bucket:
    """Create a bucket with a unique name."""
    client = s3_client(server, authority)
    name = f"bucket-{uuid.uuid4().hex[:10]}"
    client.create_bucket(Bucket=name)
    return S3Bucket(server, name, client)


def make_tls_identity(directory: Path) -> TlsIdentity:
    """Create a certificate for 127.0.0.1 and localhost, signed by a new authority."""
    authority = trustme.CA()
    leaf = authority.issue_cert(HOST, "localhost")
    chain, key, root = (directory / name for name in ("server.pem", "server.key", "ca.pem"))
    chain.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    leaf.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(root))
    return TlsIdentity(TlsCertificate(chain, key), root)
