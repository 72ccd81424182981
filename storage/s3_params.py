"""Parameters of S3 requests from settings, metadata, checksums and conditions. Pure functions."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from sidetier.storage.checksums import from_base64, to_base64
from sidetier.storage.port import (
    Checksum,
    ChecksumAlgorithm,
    Condition,
    IfAbsent,
    ObjectHead,
    ObjectSummary,
)
from sidetier.storage.settings import S3Settings

Params = dict[str, Any]
"""Keyword arguments of one boto3 call."""


def creation(settings: S3Settings, key: str, metadata: Mapping[str, str] | None) -> Params:
    """Return the parameters of a new object: encryption, storage class, tags, metadata."""
    name = key.rpartition("/")[2]
    own_class = name not in settings.default_class_names
    params = {
        "Metadata": dict(metadata) if metadata else None,
        "ServerSideEncryption": settings.sse,
        "SSEKMSKeyId": settings.sse_kms_key_id,
        "StorageClass": settings.storage_class if own_class else None,
        "Tagging": urlencode(settings.tags) if settings.tags else None,
    }
    return {name: value for name, value in params.items() if value is not None}


def checksum_header(checksum: Checksum) -> Params:
    """Return a precomputed checksum header: botocore then computes none and adds no trailer."""
    return {f"Checksum{checksum.algorithm.value}": to_base64(checksum)}


def conditional(condition: Condition | None) -> Params:
    """Return the If-None-Match or If-Match header; empty without a condition."""
    if condition is None:
        return {}
    if isinstance(condition, IfAbsent):
        return {"IfNoneMatch": "*"}
    return {"IfMatch": quoted(condition.etag)}


def byte_range(start: int, end: int | None) -> Params:
    """Return the Range header for `start` (inclusive) to `end` (exclusive); empty for all bytes."""
    if start == 0 and end is None:
        return {}
    return {"Range": f"bytes={start}-{'' if end is None else end - 1}"}


def quoted(etag: str) -> str:
    """Return the etag in quotes, as HTTP requires."""
    return etag if etag.startswith(('"', "W/")) else f'"{etag}"'


def bare(etag: str) -> str:
    """Return the etag without quotes, as in the port. S3-compatible stores differ in quoting."""
    return etag if etag.startswith("W/") else etag.strip('"')


def head_of(key: str, answer: Mapping[str, Any]) -> ObjectHead:
    """Return the object's properties from a HEAD or GET response."""
    checksums = (
        from_base64(algorithm, answer.get(f"Checksum{algorithm.value}"))
        for algorithm in ChecksumAlgorithm
    )
    return ObjectHead(
        key=key,
        size=answer["ContentLength"],
        etag=bare(answer["ETag"]),
        modified_ms=round(answer["LastModified"].timestamp() * 1000),
        metadata={name.lower(): value for name, value in answer.get("Metadata", {}).items()},
        checksum=next((checksum for checksum in checksums if checksum), None),
    )


def summary_of(key: str, row: Mapping[str, Any]) -> ObjectSummary:
    """Return one row of a listing."""
    modified = round(row["LastModified"].timestamp() * 1000)
    return ObjectSummary(key, row["Size"], bare(row["ETag"]), modified)
