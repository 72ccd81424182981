"""The S3 driver: small requests by obstore, large ranges by urllib3, and the rest by boto3.

obstore needs a tenth of boto3's CPU time for a small request. `s3_ranges` reads large ranges
without a copy. boto3 sends large bodies from the file with sendfile(2), waits for the store's
consent before it sends them (`Expect: 100-continue`), and supports multipart uploads, conditional
deletes and conditional copies.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from sidetier.segments.errors import (
    AccessDeniedError,
    InvalidRequestError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StorageError,
)
from sidetier.storage.bodies import BytesBody
from sidetier.storage.checks import check_condition, check_metadata
from sidetier.storage.checksums import checksum_of_body
from sidetier.storage.object_clients import s3_clients
from sidetier.storage.object_store import (
    SMALL_RANGE,
    ObjectStorage,
    split_metadata,
    stored_metadata,
)
from sidetier.storage.port import (
    Body,
    Checksum,
    ChecksumAlgorithm,
    Condition,
    IfMatch,
    ObjectHead,
    ObjectSummary,
    StorageCapabilities,
    UnfinishedUpload,
)
from sidetier.storage.settings import LARGEST_PUT, SMALL_BODY, AttemptDeadline, S3Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from obstore import GetOptions

    from sidetier.storage.s3_boto3 import Boto3Requests
    from sidetier.storage.s3_ranges import RangeRequests

_SMALL_COPY: Final = 64 * 1024
_OPERATIONS: Final = {
    "delete_objects": "DeleteObjects",
    "get": "GetObject",
    "head": "HeadObject",
    "list": "ListObjectsV2",
    "put": "PutObject",
}
"""S3's names of the operations, for error messages."""


class S3Storage(ObjectStorage):
    """S3 bucket, or a prefix of one.

    A body of up to `multipart_threshold` bytes is one PUT with the checksum of the whole object in
    its headers. The body is read once before it is sent to compute the checksum, unless the caller
    passes it. The checksum is also kept in the object's metadata and compared when a whole object
    is read. Equal bytes may have equal etags. The driver does not retry.

    Args:
        bucket: Name of the bucket.
        prefix: Prefix of all keys in the bucket.
        settings: Settings of the bucket.
        deadline: Deadline of each attempt.
        client: A boto3 client; if None, one is created from the settings when first needed.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        settings: S3Settings | None = None,
        deadline: AttemptDeadline | None = None,
        *,
        client: "S3Client | None" = None,
    ) -> None:
        self._bucket = bucket
        self._root = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._settings = settings or S3Settings()
        deadline = deadline or AttemptDeadline()
        self._guard = threading.Lock()
        self._given_client = client
        self._boto3: Boto3Requests | None = None
        self._range_requests: RangeRequests | None = None
        self._needs_proxy: bool | None = None
        self._deadline = deadline
        url = f"s3://{bucket}/{self._root}".rstrip("/")
        clients = s3_clients(url, self._settings, deadline, lambda: self._boto.client)
        super().__init__(clients, deadline)

    @property
    def capabilities(self) -> StorageCapabilities:
        """Conditional writes; the configured checksum unless `checksum_verified` is False."""
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
        """See `RemoteStorage`."""
        self._check(key)
        checked = check_metadata(key, metadata)
        algorithm = self._settings.checksum
        try:
            # obstore has no CRC32C.
            if body.size <= SMALL_BODY and algorithm is ChecksumAlgorithm.CRC64NVME:
                return self._put_small(key, body, checked, checksum, condition)
            if body.size > min(self._settings.multipart_threshold, LARGEST_PUT):
                # S3 evaluates the condition only when the upload is completed: check it before
                # gigabytes are sent in vain.
                self._expect(key, condition)
                stored = stored_metadata(checked, checksum)
                return self._boto.put_in_parts(key, body, stored, checksum, condition)
            # The header with the checksum goes before the body, so the body is read once for it.
            known = checksum or checksum_of_body(body, algorithm)
            return self._boto.put(key, body, stored_metadata(checked, known), known, condition)
        except ObjectNotFoundError as error:
            if condition is None:
                raise
            # S3 answers 404 to a PUT with If-Match when there is no object.
            raise PreconditionFailedError(str(error)) from error

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        """See `RemoteStorage`. One request per 1,000 keys. Keys that end in `/` are left out."""
        last = start_after
        try:
            for row in super().list_objects(prefix, start_after=start_after):
                yield row
                last = row.key
        except InvalidRequestError:
            # obstore rejects a page with a key that it could not write itself, such as `a//b`.
            yield from self._boto.list(prefix, last)

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        """See `RemoteStorage`. For a missing bucket S3 also answers HEAD with "not found"."""
        if not (with_checksum and self._settings.checksum_verified):
            return super().head_object(key)
        self._check(key)
        return self._head_by_boto(key)

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        """See `RemoteStorage`.

        S3-compatible stores may ignore If-Match on a delete, so the etag is also checked just
        before.
        """
        self._check(key)
        with suppress(ObjectNotFoundError):
            if condition is not None:
                check_condition(key, condition, self.head_object(key).etag)
            self._boto.delete(key, condition)

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        """See `RemoteStorage`.

        Under a condition, an object of up to 64 KiB is read and put again. Every other copy is
        made by the store.
        """
        self._check(source)
        self._check(target)
        head = self._head_by_boto(source)
        if condition is not None and head.size <= _SMALL_COPY:
            # A small object is cheaper to send again than a copy in
            # parts, and every store honours the condition of a put.
            stored = self.get_object(source)
            return self.put_object(
                target,
                BytesBody(stored.data),
                metadata=stored.head.metadata,
                checksum=stored.head.checksum or head.own_checksum,
                condition=condition,
            )
        self._expect(target, condition)
        checksum = head.own_checksum or head.checksum
        stored_head = replace(
            head, metadata=stored_metadata(head.metadata, checksum), checksum=checksum
        )
        return self._boto.copy(stored_head, target, condition)

    def unfinished_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """See `MultipartUploads`. One request for 1,000 uploads."""
        return self._boto.unfinished_uploads(prefix)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """See `MultipartUploads`."""
        self._boto.abort_upload(upload)

    def close(self) -> None:
        """See `RemoteStorage`."""
        super().close()
        with self._guard:
            if self._boto3 is not None:
                self._boto3.close()
            if self._range_requests is not None:
                self._range_requests.close()

    def _stream(self, key: str, options: "GetOptions", size: int | None) -> BinaryIO:
        ranges = None if size is None or size <= SMALL_RANGE else self._ranges
        if ranges is None:
            return super()._stream(key, options, size)
        start, end = cast("tuple[int, int]", options["range"])
        where = f"{_OPERATIONS['get']} {self._place(key)}"
        return ranges.open(f"{self._root}{key}", start, end, options.get("if_match"), where)

    @property
    def _ranges(self) -> "RangeRequests | None":
        """Requests for large ranges; None if there is a proxy, which obstore can use."""
        # Not at the top: the daemon reads no large ranges.
        from sidetier.storage.s3_ranges import RangeRequests, has_proxy  # noqa: PLC0415

        address, chain = self._clients.address, self._clients.chain
        with self._guard:
            if address is None:
                return None
            if self._needs_proxy is None:
                self._needs_proxy = has_proxy(address)  # goes through the whole environment
            if self._needs_proxy:
                return None
            if self._range_requests is None:
                self._range_requests = RangeRequests(
                    address, self._bucket, self._settings, self._deadline, chain
                )
            return self._range_requests

    @property
    def _boto(self) -> "Boto3Requests":
        from sidetier.storage.s3_boto3 import Boto3Requests  # noqa: PLC0415 -- boto3 is heavy

        with self._guard:
            if self._boto3 is None:
                self._boto3 = Boto3Requests(
                    self._bucket, self._root, self._settings, self._deadline, self._given_client
                )
            return self._boto3

    def translation(self, operation: str, key: str, error: Exception) -> StorageError:
        """Return our error for one of obstore's; the credential chain's own error if it has one.

        obstore keeps only the text of an error that the chain raised.
        """
        name = _OPERATIONS.get(operation, operation)
        translated = super().translation(name, key, error)
        chain = self._clients.chain
        if not isinstance(translated, AccessDeniedError) or chain is None or chain.problem is None:
            return translated
        from sidetier.storage.s3_boto3 import failure  # noqa: PLC0415 -- botocore is heavy

        return failure(f"{name} {self._place(key)}", chain.problem)

    def _head_by_boto(self, key: str) -> ObjectHead:
        """Return the head with the checksum of our metadata, and the one that the store has."""
        head = self._boto.head(key)
        metadata, noted = split_metadata(head.metadata)
        return replace(head, metadata=metadata, checksum=noted)
