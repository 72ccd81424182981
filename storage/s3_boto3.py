"""S3 requests that boto3 makes: uploads in parts, copies, deletions.

boto3 and a client take some 30 MB, so `s3` imports this module only for the first such request.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from urllib.parse import urlencode

from botocore import exceptions as boto

from sidetier.segments.errors import (
    StorageError,
)
from sidetier.storage.boto_errors import translated
from sidetier.storage.checksums import (
    RunningChecksum,
    checksum_of_stream,
    expect_checksum,
)
from sidetier.storage.object_store import bare_etag, quoted_etag
from sidetier.storage.port import (
    LISTED_AT_ONCE,
    Body,
    Checksum,
    ChecksumAlgorithm,
    Condition,
    IfMatch,
    ObjectHead,
    ObjectSummary,
    PutOptions,
    UnfinishedUpload,
)
from sidetier.storage.s3_requests import (
    S3Requests,
    checksum_header,
    condition_header,
    new_object_headers,
)
from sidetier.storage.settings import GIB, LARGEST_PUT, MAX_PARTS, S3Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_LOG: Final = logging.getLogger(__name__)
_COPIED_PART: Final = GIB

_PARAMS: Final = {
    "x-amz-server-side-encryption": "ServerSideEncryption",
    "x-amz-server-side-encryption-aws-kms-key-id": "SSEKMSKeyId",
    "x-amz-storage-class": "StorageClass",
    "x-amz-tagging": "Tagging",
    "x-amz-checksum-crc64nvme": "ChecksumCRC64NVME",
    "x-amz-checksum-crc32c": "ChecksumCRC32C",
    "If-None-Match": "IfNoneMatch",
    "If-Match": "IfMatch",
}
"""boto3's names of headers."""

Params = dict[str, Any]
"""Keyword arguments of one boto3 call."""
Parts = list[Params]
"""Numbers, etags and checksums of the parts of an upload."""


class Boto3Requests:
    """Requests to one bucket, each tried once. Thread-safe.

    Args:
        bucket: Name of the bucket.
        root: Prefix of all keys: empty, or ends with a slash.
        settings: Settings of the bucket.
        client: A boto3 client with these settings.
        requests: Sends the parts of uploads.
    """

    def __init__(
        self,
        bucket: str,
        root: str,
        settings: S3Settings,
        client: "S3Client",
        requests: S3Requests,
    ) -> None:
        self.client = client
        self._requests = requests
        self._bucket = bucket
        self._root = root
        self._settings = settings

    def put_in_parts(self, key: str, body: Body, options: PutOptions) -> str:
        """Store the body in parts and return its etag. Memory does not grow with the body's size.

        The store combines the checksums of the parts into the whole object's, and compares it.

        Raises:
            ChecksumMismatchError: The bytes read do not match the given checksum.
        """
        checksum = options.checksum
        algorithm = self._settings.checksum if checksum is None else checksum.algorithm
        with body.open() as stream, self._upload(key, options.metadata, algorithm) as upload_id:
            parts, whole = self._send_parts(key, upload_id, stream, body.size, algorithm)
            expect_checksum(key, checksum, whole)
            return self._complete(key, upload_id, parts, whole, options.condition)

    def copy(self, source: ObjectHead, target: str, condition: Condition | None) -> str:
        """Copy the version that `source` describes within the store; return the new etag.

        A copy with a condition is also made in parts. More stores honour If-None-Match and If-Match
        in CompleteMultipartUpload than in CopyObject, where S3-compatible stores ignore them
        silently.

        Raises:
            PreconditionFailedError: The condition does not hold, or the source changed meanwhile.
        """
        if condition is None and source.size <= LARGEST_PUT:  # S3's limit for CopyObject, too
            return self._copy_at_once(source, target)
        algorithm = self._algorithm(source)
        with self._upload(target, source.metadata, algorithm) as upload_id:
            parts = self._copy_parts(source, target, upload_id, algorithm)
            return self._complete(target, upload_id, parts, source.checksum, condition)

    def list(self, prefix: str, start_after: str) -> Iterator[ObjectSummary]:
        """Yield the objects as `RemoteStorage.list_objects`. Keys that end in `/` are left out."""
        params: Params = {"Prefix": self._root + prefix, "MaxKeys": LISTED_AT_ONCE}
        if start_after:
            params["StartAfter"] = self._root + start_after
        while True:
            with self._translated("ListObjectsV2", prefix):
                page = self.client.list_objects_v2(Bucket=self._bucket, **params)
                rows = [
                    _summary_of(row["Key"].removeprefix(self._root), row)
                    for row in page.get("Contents", ())
                    if not row["Key"].endswith("/")
                ]
            yield from rows
            if not page.get("IsTruncated"):
                return
            with self._translated("ListObjectsV2", prefix):
                params["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, key: str, condition: IfMatch | None) -> None:
        """Delete an object. S3-compatible stores may ignore the condition."""
        with self._translated("DeleteObject", key):
            self.client.delete_object(
                Bucket=self._bucket, Key=self._root + key, **_params(condition_header(condition))
            )

    def unfinished_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """Yield the unfinished multipart uploads of keys that begin with `prefix`."""
        params: Params = {"Prefix": self._root + prefix, "MaxUploads": LISTED_AT_ONCE}
        while True:
            with self._translated("ListMultipartUploads", prefix):
                page: Any = self.client.list_multipart_uploads(Bucket=self._bucket, **params)
                uploads = [
                    UnfinishedUpload(
                        row["Key"].removeprefix(self._root),
                        row["UploadId"],
                        int(row["Initiated"].timestamp() * 1000),
                    )
                    for row in page.get("Uploads", ())
                ]
            yield from uploads
            if not page.get("IsTruncated"):
                return
            params["KeyMarker"] = page["NextKeyMarker"]
            params["UploadIdMarker"] = page["NextUploadIdMarker"]

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Abort an upload; a missing one is not an error."""
        with self._translated("AbortMultipartUpload", upload.key):
            try:
                self.client.abort_multipart_upload(
                    Bucket=self._bucket, Key=self._root + upload.key, UploadId=upload.upload_id
                )
            except boto.ClientError as error:
                if error.response["Error"]["Code"] != "NoSuchUpload":
                    raise

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def _translated(self, operation: str, key: str) -> AbstractContextManager[None]:
        return translated(operation, self._bucket, self._root + key)

    @contextmanager
    def _upload(
        self, key: str, metadata: Mapping[str, str], algorithm: ChecksumAlgorithm
    ) -> Iterator[str]:
        """Begin an upload and yield its id; abort it if the block raises.

        A kill leaves the upload unfinished: a lifecycle rule of the bucket should abort incomplete
        multipart uploads.
        """
        with self._translated("CreateMultipartUpload", key):
            response = self.client.create_multipart_upload(
                Bucket=self._bucket,
                Key=self._root + key,
                ChecksumAlgorithm=algorithm.value,
                # Otherwise S3 stores a checksum of the parts'
                # checksums, which proves nothing about the whole object.
                ChecksumType="FULL_OBJECT",
                **self._creation(key, metadata),
            )
            upload_id = response["UploadId"]
        try:
            yield upload_id
        except BaseException:  # also a signal handler's: S3 bills parts until they are aborted
            self._abort(key, upload_id)
            raise

    def _complete(
        self,
        key: str,
        upload_id: str,
        parts: Parts,
        checksum: Checksum | None,
        condition: Condition | None,
    ) -> str:
        """Make the object visible if the condition holds now; return its etag."""
        params = _params(condition_header(condition))
        if checksum is not None:
            params |= {**_params(checksum_header(checksum)), "ChecksumType": "FULL_OBJECT"}
        with self._translated("CompleteMultipartUpload", key):
            response: Any = self.client.complete_multipart_upload(
                Bucket=self._bucket,
                Key=self._root + key,
                UploadId=upload_id,
                MultipartUpload={"Parts": parts},  # type: ignore[typeddict-item]
                **params,
            )
            return bare_etag(response["ETag"])

    def _abort(self, key: str, upload_id: str) -> None:
        """Abort the upload. A failure is only logged: the original error is the one to raise."""
        full = self._root + key
        try:
            with self._translated("AbortMultipartUpload", key):
                self.client.abort_multipart_upload(
                    Bucket=self._bucket, Key=full, UploadId=upload_id
                )
        except StorageError as error:
            _LOG.warning("multipart_abort_failed", extra={"key": full, "error": str(error)})

    def _send_parts(
        self, key: str, upload_id: str, stream: BinaryIO, size: int, algorithm: ChecksumAlgorithm
    ) -> tuple[Parts, Checksum]:
        whole = RunningChecksum(algorithm)
        parts: Parts = []
        start = 0
        for length in part_sizes(size, self._settings.part_size):
            stream.seek(start)
            # Each part is read twice: S3 takes the checksum in a header, before the bytes.
            checksum = checksum_of_stream(stream, algorithm, length)
            header = checksum_header(checksum)
            number = len(parts) + 1
            etag = self._requests.put(
                self._root + key,
                (stream, start, length),
                header,
                f"UploadPart s3://{self._bucket}/{self._root}{key}",
                urlencode({"partNumber": number, "uploadId": upload_id}),
            )
            parts.append({"PartNumber": number, "ETag": etag, **_params(header)})
            whole.append(checksum, length)
            start += length
        return parts, whole.result()

    def _copy_at_once(self, source: ObjectHead, target: str) -> str:
        creation = self._creation(target, source.metadata)
        tagged = {"TaggingDirective": "REPLACE"} if "Tagging" in creation else {}
        with self._translated("CopyObject", target):
            response: Any = self.client.copy_object(
                Bucket=self._bucket,
                Key=self._root + target,
                **self._copy_source(source),
                # Without REPLACE, S3 copies the source's metadata and ignores that given here.
                MetadataDirective="REPLACE",
                **tagged,  # type: ignore[arg-type]
                ChecksumAlgorithm=self._algorithm(source).value,
                **creation,
            )
            return bare_etag(response["CopyObjectResult"]["ETag"])

    def _copy_parts(
        self, source: ObjectHead, target: str, upload_id: str, algorithm: ChecksumAlgorithm
    ) -> Parts:
        parts: Parts = []
        start = 0
        checksum_name = f"Checksum{algorithm.value}"
        for size in part_sizes(source.size, _COPIED_PART):
            number = len(parts) + 1
            with self._translated("UploadPartCopy", target):
                response: Any = self.client.upload_part_copy(
                    Bucket=self._bucket,
                    Key=self._root + target,
                    UploadId=upload_id,
                    PartNumber=number,
                    # Inclusive at both ends, unlike the ranges of the port.
                    CopySourceRange=f"bytes={start}-{start + size - 1}",
                    **self._copy_source(source),
                )
                result = response["CopyPartResult"]
                part = {"PartNumber": number, "ETag": result["ETag"]}
                if result.get(checksum_name):
                    part[checksum_name] = result[checksum_name]
                parts.append(part)
            start += size
        return parts

    def _copy_source(self, source: ObjectHead) -> Params:
        return {
            "CopySource": {"Bucket": self._bucket, "Key": self._root + source.key},
            # A copy in parts must not mix two versions of the source.
            "CopySourceIfMatch": quoted_etag(source.etag),
        }

    def _algorithm(self, source: ObjectHead) -> ChecksumAlgorithm:
        return source.checksum.algorithm if source.checksum else self._settings.checksum

    def _creation(self, key: str, metadata: Mapping[str, str]) -> Params:
        """Return the parameters of a new object: encryption, storage class, tags, metadata."""
        params = _params(new_object_headers(self._settings, key))
        return {**params, "Metadata": dict(metadata)} if metadata else params


def part_sizes(size: int, wanted: int) -> list[int]:
    """Return the sizes of the parts of `size` bytes: equal except for the last, at most 10,000."""
    each = max(wanted, -(-size // MAX_PARTS))
    return [min(each, size - start) for start in range(0, size, each)]


def _params(headers: Mapping[str, str]) -> Params:
    """Return headers of `s3_requests` as keyword arguments of boto3."""
    return {_PARAMS[name]: value for name, value in headers.items()}


def _summary_of(key: str, row: Mapping[str, Any]) -> ObjectSummary:
    modified = round(row["LastModified"].timestamp() * 1000)
    return ObjectSummary(key, row["Size"], bare_etag(row["ETag"]), modified)
