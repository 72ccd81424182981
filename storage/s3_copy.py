"""Copies within a bucket: in one request where possible, in parts otherwise."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sidetier.storage import s3_params
from sidetier.storage.port import Checksum, ChecksumAlgorithm, Condition, ObjectHead
from sidetier.storage.s3_errors import translated
from sidetier.storage.s3_multipart import Multipart, part_sizes
from sidetier.storage.settings import GIB, LARGEST_PUT, S3Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_COPIED_PART: Final = GIB
_SOURCE_CHANGED: Final = "CopySourceIfMatch"


@dataclass(frozen=True, slots=True)
class Copier:
    """Server-side copies; the bytes do not pass through this process.

    A copy with a condition is also made in parts. More stores honour If-None-Match and If-Match in
    CompleteMultipartUpload than in CopyObject, where S3-compatible stores ignore them silently.
    """

    client: "S3Client"
    bucket: str
    settings: S3Settings
    parts: Multipart

    def copy(self, source: ObjectHead, target: str, condition: Condition | None) -> str:
        """Copy the version that `source` describes; return the new etag.

        Raises:
            PreconditionFailedError: The condition does not hold, or the source changed meanwhile.
        """
        creation = s3_params.creation(self.settings, target, source.metadata)
        if condition is None and source.size <= LARGEST_PUT:
            return self._at_once(source, target, creation)
        return self._in_parts(source, target, creation, condition)

    def _at_once(self, source: ObjectHead, target: str, creation: s3_params.Params) -> str:
        tagged = {"TaggingDirective": "REPLACE"} if "Tagging" in creation else {}
        with translated("CopyObject", self.bucket, target):
            answer: Any = self.client.copy_object(
                Bucket=self.bucket,
                Key=target,
                **self._source(source),
                MetadataDirective="REPLACE",
                **tagged,  # type: ignore[arg-type]
                **self._algorithm(source),
                **creation,
            )
            return s3_params.bare(answer["CopyObjectResult"]["ETag"])

    def _in_parts(
        self,
        source: ObjectHead,
        target: str,
        creation: s3_params.Params,
        condition: Condition | None,
    ) -> str:
        checksum = source.checksum
        algorithm = checksum.algorithm if checksum else self.settings.checksum
        with self.parts.upload(target, creation, algorithm) as upload_id:
            parts = self._copied_parts(source, target, upload_id, algorithm)
            return self.parts.complete(target, upload_id, parts, checksum, condition)

    def _copied_parts(
        self, source: ObjectHead, target: str, upload_id: str, algorithm: ChecksumAlgorithm
    ) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        start = 0
        for size in part_sizes(source.size, _COPIED_PART):
            with translated("UploadPartCopy", self.bucket, target):
                answer: Any = self.client.upload_part_copy(
                    Bucket=self.bucket,
                    Key=target,
                    UploadId=upload_id,
                    PartNumber=len(parts) + 1,
                    CopySourceRange=f"bytes={start}-{start + size - 1}",
                    **self._source(source),
                )
                parts.append(_part(len(parts) + 1, answer["CopyPartResult"], algorithm))
            start += size
        return parts

    def _source(self, source: ObjectHead) -> dict[str, Any]:
        location = {"Bucket": self.bucket, "Key": source.key}
        return {"CopySource": location, _SOURCE_CHANGED: s3_params.quoted(source.etag)}

    def _algorithm(self, source: ObjectHead) -> dict[str, Any]:
        known: Checksum | None = source.checksum
        return {"ChecksumAlgorithm": (known.algorithm if known else self.settings.checksum).value}


def _part(number: int, result: dict[str, Any], algorithm: ChecksumAlgorithm) -> dict[str, Any]:
    name = f"Checksum{algorithm.value}"
    known = {name: result[name]} if result.get(name) else {}
    return {"PartNumber": number, "ETag": result["ETag"], **known}
