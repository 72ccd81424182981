"""The S3 driver: small requests by obstore, large bodies by urllib3, and the rest by boto3.

obstore needs a tenth of boto3's CPU time for a small request. `s3_requests` moves large bodies
without a copy, and waits for `100 Continue` before it sends them.
boto3 is loaded only for multipart uploads, copies and deletions.
"""

import threading
from collections.abc import Iterator
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
from sidetier.storage.checks import check_condition, check_options
from sidetier.storage.checksums import checksum_of_body
from sidetier.storage.object_clients import s3_clients
from sidetier.storage.object_store import (
    SMALL_RANGE,
    ObjectStorage,
    bare_etag,
    split_metadata,
    stored_metadata,
    with_stored_metadata,
)
from sidetier.storage.port import (
    NO_OPTIONS,
    Body,
    ChecksumAlgorithm,
    Condition,
    IfMatch,
    ObjectHead,
    ObjectSummary,
    PutOptions,
    StorageCapabilities,
    UnfinishedUpload,
)
from sidetier.storage.settings import LARGEST_PUT, SMALL_BODY, AttemptDeadline, S3Settings

if TYPE_CHECKING:
    from obstore import GetOptions

    from sidetier.storage.s3_boto3 import Boto3Requests
    from sidetier.storage.s3_requests import S3Requests

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
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        settings: S3Settings | None = None,
        deadline: AttemptDeadline | None = None,
    ) -> None:
        self._bucket = bucket
        self._root = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._settings = settings or S3Settings()
        deadline = deadline or AttemptDeadline()
        self._guard = threading.Lock()
        self._boto3: Boto3Requests | None = None
        self._large: S3Requests | None = None
        self._deadline = deadline
        url = f"s3://{bucket}/{self._root}".rstrip("/")
        clients = s3_clients(url, self._settings, deadline)
        super().__init__(clients, deadline)

    @property
    def capabilities(self) -> StorageCapabilities:
        """Conditional writes; the configured checksum unless `checksum_verified` is False."""
        verified = self._settings.checksum_verified
        return StorageCapabilities(
            conditional_writes=True, checksum=self._settings.checksum if verified else None
        )

    def put_object(self, key: str, body: Body, options: PutOptions = NO_OPTIONS) -> str:
        """See `RemoteStorage`."""
        self._check(key)
        options = check_options(key, options)
        algorithm = self._settings.checksum
        try:
            # obstore has no CRC32C.
            if body.size <= SMALL_BODY and algorithm is ChecksumAlgorithm.CRC64NVME:
                return self._put_small(key, body, options)
            if body.size > min(self._settings.multipart_threshold, LARGEST_PUT):
                # S3 evaluates the condition only when the upload is completed: check it before
                # gigabytes are sent in vain.
                self._expect(key, options.condition)
                return self._boto.put_in_parts(key, body, with_stored_metadata(options))
            # The header with the checksum goes before the body, so the body is read once for it.
            known = options.checksum or checksum_of_body(body, algorithm)
            return self._put_large(
                key, body, with_stored_metadata(replace(options, checksum=known))
            )
        except ObjectNotFoundError as error:
            if options.condition is None:
                raise
            # S3 answers 404 to a PUT with If-Match when there is no object.
            raise PreconditionFailedError(str(error)) from error

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        """One request per 1,000 keys. Keys that end in `/` are left out."""
        last = start_after
        try:
            for row in super().list_objects(prefix, start_after=start_after):
                yield row
                last = row.key
        except InvalidRequestError:
            # obstore rejects a page with a key that it could not write itself, such as `a//b`.
            yield from self._boto.list(prefix, last)

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        """For a missing bucket S3 also answers HEAD with "not found"."""
        if not (with_checksum and self._settings.checksum_verified):
            return super().head_object(key)
        self._check(key)
        return self._head_with_checksum(key)

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        """S3-compatible stores may ignore If-Match on a delete, so the etag is also checked just
        before.
        """
        self._check(key)
        with suppress(ObjectNotFoundError):
            if condition is not None:
                check_condition(key, condition, self.head_object(key).etag)
            self._boto.delete(key, condition)

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        """Under a condition, an object of up to 64 KiB is read and put again. Every other copy is
        made by the store.
        """
        self._check(source)
        self._check(target)
        head = self._head_with_checksum(source)
        if condition is not None and head.size <= _SMALL_COPY:
            # A small object is cheaper to send again than a copy in
            # parts, and every store honours the condition of a put.
            stored = self.get_object(source)
            return self.put_object(
                target,
                BytesBody(stored.data),
                PutOptions(
                    stored.head.metadata, stored.head.checksum or head.own_checksum, condition
                ),
            )
        self._expect(target, condition)
        checksum = head.own_checksum or head.checksum
        stored_head = replace(
            head, metadata=stored_metadata(head.metadata, checksum), checksum=checksum
        )
        return self._boto.copy(stored_head, target, condition)

    def unfinished_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """One request for 1,000 uploads."""
        return self._boto.unfinished_uploads(prefix)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """One request."""
        self._boto.abort_upload(upload)

    def close(self) -> None:
        """Close the clients of boto3 and of large bodies, as far as they were opened."""
        super().close()
        with self._guard:
            if self._boto3 is not None:
                self._boto3.close()
            if self._large is not None:
                self._large.close()

    def _put_large(self, key: str, body: Body, options: PutOptions) -> str:
        """Store the body in one request, with its checksum in a header; return the etag."""
        from sidetier.storage.s3_requests import put_headers  # noqa: PLC0415

        headers = put_headers(self._settings, key, options)
        with body.open() as stream:
            window = stream, 0, body.size
            etag = self._requests.put(self._root + key, window, headers, self._where("put", key))
            return bare_etag(etag)

    def _stream(self, key: str, options: "GetOptions", size: int | None) -> BinaryIO:
        if size is None or size <= SMALL_RANGE:
            return super()._stream(key, options, size)
        start, end = cast("tuple[int, int]", options["range"])
        where = self._where("get", key)
        return self._requests.get(self._root + key, start, end, options.get("if_match"), where)

    def _head_with_checksum(self, key: str) -> ObjectHead:
        """Return the head with the checksum of our metadata, and the one that the store has."""
        from sidetier.storage.s3_requests import head_of  # noqa: PLC0415

        where = self._where("head", key)
        mode = {"x-amz-checksum-mode": "ENABLED"} if self._settings.checksum_verified else {}
        head = head_of(key, self._requests.head(self._root + key, mode, where), where)
        metadata, noted = split_metadata(head.metadata)
        return replace(head, metadata=metadata, checksum=noted)

    def _where(self, operation: str, key: str) -> str:
        return f"{_OPERATIONS[operation]} {self._place(key)}"

    @property
    def _requests(self) -> "S3Requests":
        # Not at the top: commands with small requests only do not need it.
        from sidetier.storage.s3_requests import S3Requests  # noqa: PLC0415

        address, chain = self._clients.address, self._clients.chain
        assert address is not None  # noqa: S101 -- for mypy: `s3_clients` sets it
        with self._guard:
            if self._large is None:
                self._large = S3Requests(
                    address, self._bucket, self._settings, self._deadline, chain
                )
            return self._large

    @property
    def _boto(self) -> "Boto3Requests":
        from sidetier.storage.s3_boto3 import Boto3Requests  # noqa: PLC0415 -- boto3 is heavy
        from sidetier.storage.s3_client import make_client  # noqa: PLC0415

        requests = self._requests
        with self._guard:
            if self._boto3 is None:
                client = make_client(self._settings, self._deadline)
                self._boto3 = Boto3Requests(
                    self._bucket, self._root, self._settings, client, requests
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
        from sidetier.storage.boto_errors import failure  # noqa: PLC0415 -- botocore is heavy

        return failure(f"{name} {self._place(key)}", chain.problem)
