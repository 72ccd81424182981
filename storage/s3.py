"""The S3 store, on boto3."""

import io
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from botocore.exceptions import ClientError

from sidetier.segments.errors import ObjectNotFoundError, PreconditionFailedError, StorageError
from sidetier.storage import s3_params
from sidetier.storage.async_put import PutsAsync
from sidetier.storage.bodies import BytesBody
from sidetier.storage.checks import check_key, check_metadata, check_range
from sidetier.storage.checksums import checksum_of_body
from sidetier.storage.conditions import check_condition
from sidetier.storage.port import (
    LISTED_AT_ONCE,
    Body,
    Checksum,
    Condition,
    IfAbsent,
    IfMatch,
    ObjectHead,
    ObjectSummary,
    StorageCapabilities,
    StoredObject,
)
from sidetier.storage.s3_copy import Copier
from sidetier.storage.s3_errors import status_of, translated
from sidetier.storage.s3_multipart import Multipart
from sidetier.storage.s3_send import Sender, refused_match, window
from sidetier.storage.s3_stream import answer_stream, read_all
from sidetier.storage.settings import LARGEST_PUT, AttemptDeadline, S3Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef

_SMALL_COPY: Final = 64 * 1024
_RANGE_REFUSED: Final = 416


class S3Storage(PutsAsync):
    """A bucket, or what lies under a prefix of it.

    A body up to `multipart_threshold` is one PUT with the checksum of the whole object in its
    headers; the checksum takes one read of the body before it is sent, unless the caller has it.
    The etag of equal bytes may be equal. Nothing is tried twice here.
    """

    def __init__(
        self,
        client: "S3Client",
        bucket: str,
        prefix: str = "",
        settings: S3Settings | None = None,
        deadline: AttemptDeadline | None = None,
        async_puts: int = 4,
    ) -> None:
        self._client = client
        self._bucket = bucket
        self._root = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._settings = settings or S3Settings()
        self._deadline = deadline or AttemptDeadline()
        self._sender = Sender(bucket)
        self._multipart = Multipart(client, bucket, self._settings.part_size, self._deadline)
        self._copier = Copier(client, bucket, self._settings, self._multipart)
        super().__init__(async_puts)

    @property
    def capabilities(self) -> StorageCapabilities:
        """Conditional writes, and the configured checksum unless the store is said to ignore it."""
        verified = self._settings.checksum_verified
        return StorageCapabilities(
            conditional_writes=True, checksum=self._settings.checksum if verified else None
        )

    def put_object(
        self,
        key: str,
        body: Body,
        *,
        metadata: Mapping[str, str] | None = None,
        checksum: Checksum | None = None,
        condition: Condition | None = None,
    ) -> str:
        """See the port."""
        full = self._full(key)
        creation = s3_params.creation(self._settings, full, check_metadata(key, metadata))
        try:
            if body.size > min(self._settings.multipart_threshold, LARGEST_PUT):
                self._expect(key, condition)
                algorithm = checksum or self._settings.checksum
                return self._multipart.put(full, body, creation, algorithm, condition)
            return self._put_at_once(full, body, creation, checksum, condition)
        except StorageError as error:
            raise refused_match(error, condition) from error.__cause__

    def get_object(self, key: str) -> StoredObject:
        """See the port; the checksum that the store knows is compared with the bytes."""
        full = self._full(key)
        with translated("GetObject", self._bucket, full):
            answer = self._client.get_object(Bucket=self._bucket, Key=full, **self._checksum_mode())
            head = s3_params.head_of(key, answer)
        data = read_all(answer["Body"], self._bucket, full, self._deadline.seconds(head.size))
        return StoredObject(head, data)

    def get_object_input_stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        *,
        condition: IfMatch | None = None,
    ) -> BinaryIO:
        """See the port."""
        check_range(key, start, end)
        full = self._full(key)
        if end == start:
            check_condition(key, condition, self.head_object(key).etag)
            return io.BytesIO()
        try:
            with translated("GetObject", self._bucket, full):
                answer = self._client.get_object(
                    Bucket=self._bucket,
                    Key=full,
                    **s3_params.byte_range(start, end),
                    **s3_params.conditional(condition),
                )
        except StorageError as error:
            if _is_past_the_end(error):
                return io.BytesIO()
            raise
        return answer_stream(answer["Body"], self._bucket, full)

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        """See the port; a page of 1,000 per request. Keys that end in `/` are not shown."""
        after = {"StartAfter": self._root + start_after} if start_after else {}
        for page in self._pages(prefix, after):
            with translated("ListObjectsV2", self._bucket, self._root + prefix):
                rows = [
                    s3_params.summary_of(row["Key"].removeprefix(self._root), row)
                    for row in page.get("Contents", ())
                    if not row["Key"].endswith("/")
                ]
            yield from rows

    def list_directories(self, prefix: str) -> list[str]:
        """See the port."""
        return [
            row["Prefix"].removeprefix(self._root)
            for page in self._pages(prefix, {"Delimiter": "/"})
            for row in page.get("CommonPrefixes", ())
        ]

    def head_object(self, key: str) -> ObjectHead:
        """See the port. S3 answers a HEAD in a missing bucket as one for a missing object."""
        full = self._full(key)
        with translated("HeadObject", self._bucket, full):
            answer = self._client.head_object(
                Bucket=self._bucket, Key=full, **self._checksum_mode()
            )
            return s3_params.head_of(key, answer)

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        """See the port. Imitations may ignore If-Match here: so it is looked at before, too."""
        full = self._full(key)
        try:
            if condition is not None:
                check_condition(key, condition, self.head_object(key).etag)
            with translated("DeleteObject", self._bucket, full):
                self._client.delete_object(
                    Bucket=self._bucket, Key=full, **s3_params.conditional(condition)
                )
        except ObjectNotFoundError:
            return

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        """See the port; a small one under a condition is read and put, others stay on the store."""
        full = self._full(target)
        head = self.head_object(source)
        if condition is not None and head.size <= _SMALL_COPY:
            stored = self.get_object(source)
            return self.put_object(
                target,
                BytesBody(stored.data),
                metadata=stored.head.metadata,
                checksum=stored.head.checksum,
                condition=condition,
            )
        self._expect(target, condition)
        return self._copier.copy(_at(head, self._full(source)), full, condition)

    def close(self) -> None:
        """See the port."""
        self._async.close()
        self._client.close()

    def _pages(self, prefix: str, how: s3_params.Params) -> Iterator["ListObjectsV2OutputTypeDef"]:
        params: dict[str, Any] = {"Prefix": self._root + prefix, "MaxKeys": LISTED_AT_ONCE, **how}
        while True:
            with translated("ListObjectsV2", self._bucket, self._root + prefix):
                page = self._client.list_objects_v2(Bucket=self._bucket, **params)
            yield page
            if not page.get("IsTruncated"):
                return
            with translated("ListObjectsV2", self._bucket, self._root + prefix):
                params["ContinuationToken"] = page["NextContinuationToken"]

    def _checksum_mode(self) -> dict[str, Any]:
        return {"ChecksumMode": "ENABLED"} if self._settings.checksum_verified else {}

    def _full(self, key: str) -> str:
        check_key(key)
        full = self._root + key
        check_key(full)
        return full

    def _put_at_once(
        self,
        full: str,
        body: Body,
        creation: s3_params.Params,
        checksum: Checksum | None,
        condition: Condition | None,
    ) -> str:
        known = checksum or checksum_of_body(body, self._settings.checksum)
        with body.open() as raw:
            answer = self._sender.send(
                "PutObject",
                self._client.put_object,
                window(raw, 0, body.size, self._deadline.seconds(body.size)),
                Key=full,
                **creation,
                **s3_params.checksum_header(known),
                **s3_params.conditional(condition),
            )
        with translated("PutObject", self._bucket, full):
            return s3_params.bare(answer["ETag"])

    def _expect(self, key: str, condition: Condition | None) -> None:
        """A look before many bytes are moved; the store decides again when they are there."""
        if condition is None:
            return
        try:
            etag: str | None = self.head_object(key).etag
        except ObjectNotFoundError:
            etag = None
        wanted = None if isinstance(condition, IfAbsent) else condition.etag
        if etag != wanted:
            raise PreconditionFailedError(f"{key}: {condition} does not hold: etag is {etag}")


def _at(head: ObjectHead, key: str) -> ObjectHead:
    return ObjectHead(key, head.size, head.etag, head.modified_ms, head.metadata, head.checksum)


def _is_past_the_end(error: StorageError) -> bool:
    return isinstance(error.__cause__, ClientError) and status_of(error.__cause__) == _RANGE_REFUSED
