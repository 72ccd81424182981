"""Multipart uploads of large bodies: sent part by part, verified as a whole, aborted on failure."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from sidetier.segments.errors import StorageError
from sidetier.storage import s3_params
from sidetier.storage.checksums import RunningChecksum, checksum_of_stream, expect_checksum
from sidetier.storage.port import Body, Checksum, ChecksumAlgorithm, Condition
from sidetier.storage.s3_errors import translated
from sidetier.storage.s3_send import Sender, window
from sidetier.storage.settings import MOST_PARTS, AttemptDeadline

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_LOG: Final = logging.getLogger(__name__)


def part_sizes(size: int, wanted: int) -> list[int]:
    """Return the sizes of the parts of `size` bytes: equal except for the last, at most 10,000."""
    each = max(wanted, -(-size // MOST_PARTS))
    return [min(each, size - start) for start in range(0, size, each)]


@dataclass(frozen=True, slots=True)
class Multipart:
    """Multipart uploads to one bucket."""

    client: "S3Client"
    bucket: str
    part_size: int
    deadline: AttemptDeadline

    def put(
        self,
        key: str,
        body: Body,
        creation: Mapping[str, Any],
        checksum: Checksum | ChecksumAlgorithm,
        condition: Condition | None,
    ) -> str:
        """Store the body and return its etag. Memory does not grow with the body's size.

        The store combines the checksums of the parts into that of the whole object and compares it.

        Raises:
            ChecksumMismatchError: The bytes read do not match the given checksum.
        """
        expected = checksum if isinstance(checksum, Checksum) else None
        algorithm = checksum.algorithm if isinstance(checksum, Checksum) else checksum
        with body.open() as stream, self.upload(key, creation, algorithm) as upload_id:
            parts, whole = self._send_parts(key, upload_id, stream, body.size, algorithm)
            expect_checksum(key, expected, whole)
            return self.complete(key, upload_id, parts, whole, condition)

    @contextmanager
    def upload(
        self, key: str, creation: Mapping[str, Any], algorithm: ChecksumAlgorithm
    ) -> Iterator[str]:
        """Begin an upload and yield its id; abort it if the block raises.

        A kill leaves the upload unfinished: a lifecycle rule of the bucket should abort incomplete
        multipart uploads.
        """
        with translated("CreateMultipartUpload", self.bucket, key):
            answer = self.client.create_multipart_upload(
                Bucket=self.bucket,
                Key=key,
                ChecksumAlgorithm=algorithm.value,
                ChecksumType="FULL_OBJECT",
                **creation,
            )
            upload_id = answer["UploadId"]
        try:
            yield upload_id
        except BaseException:
            self._abort(key, upload_id)
            raise

    def complete(
        self,
        key: str,
        upload_id: str,
        parts: list[dict[str, Any]],
        checksum: Checksum | None,
        condition: Condition | None,
    ) -> str:
        """Make the object visible if the condition holds now; return its etag."""
        params = s3_params.conditional(condition)
        if checksum is not None:
            params |= {**s3_params.checksum_header(checksum), "ChecksumType": "FULL_OBJECT"}
        with translated("CompleteMultipartUpload", self.bucket, key):
            answer: Any = self.client.complete_multipart_upload(
                Bucket=self.bucket,
                Key=key,
                UploadId=upload_id,
                MultipartUpload={"Parts": parts},  # type: ignore[typeddict-item]
                **params,
            )
            return s3_params.bare(answer["ETag"])

    def _send_parts(
        self, key: str, upload_id: str, stream: BinaryIO, size: int, algorithm: ChecksumAlgorithm
    ) -> tuple[list[dict[str, Any]], Checksum]:
        whole = RunningChecksum(algorithm)
        parts: list[dict[str, Any]] = []
        sender = Sender(self.bucket)
        start = 0
        for length in part_sizes(size, self.part_size):
            stream.seek(start)
            checksum = checksum_of_stream(stream, algorithm, length)
            header = s3_params.checksum_header(checksum)
            answer = sender.send(
                "UploadPart",
                self.client.upload_part,
                window(stream, start, length, self.deadline.seconds(length)),
                Key=key,
                UploadId=upload_id,
                PartNumber=len(parts) + 1,
                **header,
            )
            with translated("UploadPart", self.bucket, key):
                parts.append({"PartNumber": len(parts) + 1, "ETag": answer["ETag"], **header})
            whole.append(checksum, length)
            start += length
        return parts, whole.result()

    def _abort(self, key: str, upload_id: str) -> None:
        """Abort the upload. A failure is only logged: the original error is the one to raise."""
        try:
            with translated("AbortMultipartUpload", self.bucket, key):
                self.client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload_id)
        except StorageError as error:
            _LOG.warning("multipart_abort_failed", extra={"key": key, "error": str(error)})
