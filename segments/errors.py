"""All errors that Sidetier raises. The attribute `retry` of each states whether a retry can help.

::

    SidetierError
    ├── ConfigurationError            a setting is wrong; nothing was changed
    ├── SegmentError                  a local file is not as it should be
    │   ├── SegmentGoneError          the file no longer has a name
    │   ├── SegmentChangedError       the file changed while it was read
    │   ├── DamagedSegmentError       bytes that no broker would serve
    │   ├── BatchTooLargeError        a sound batch that is larger than a reader's limit
    │   └── UnsupportedFormatError    bytes of an unknown version
    ├── ArchiveError                  a stored object is not as it should be
    │   ├── MalformedObjectError      an object of Sidetier or Pinterest's uploader does not parse
    │   └── ArchiveConflictError      another writer has stored other bytes
    ├── StorageError
    │   ├── TransientStorageError     retry = True
    │   │   ├── StoreUnavailableError     5xx, connection refused, cut, reset
    │   │   ├── StoreThrottledError       503 SlowDown, 429
    │   │   └── StoreTimeoutError         a deadline passed; the write may have succeeded
    │   └── PermanentStorageError     retry = False
    │       ├── ObjectNotFoundError
    │       ├── PreconditionFailedError   If-Match or If-None-Match refused
    │       ├── RefusedConditionError     the same, although the condition holds
    │       ├── AccessDeniedError
    │       ├── ChecksumMismatchError
    │       ├── StoreFullError            no space, or over quota
    │       ├── MalformedAnswerError  an answer that lacks a field, or cannot be read
    │       ├── EncryptionError       an encrypted object cannot be decrypted
    │       │   ├── EncryptionKeyError    its key is not configured, or is another one
    │       │   └── DamagedCiphertextError  its bytes are not those that were stored
    │       └── InvalidRequestError       any other refusal of the store
    ├── LeadershipError
    │   └── LeadershipUnavailableError  retry = True
    ├── MirrorError                   a mirror cannot continue without an operator
    │   ├── ProducerFencedError       another process has taken over the transactional id
    │   └── SourceUnavailableError    retry = True: the source's brokers have failed for too long
    ├── MalformedRequestError         a client's request that breaks Kafka's protocol
    └── BrokerError                   a request to a Kafka broker failed
        ├── BrokerUnavailableError    retry = True: refused, cut, or no response in time
        ├── BrokerLoginError          TLS or SASL: the broker and the client refuse each other
        ├── UnsupportedVersionError   no version of the request is known to both sides
        ├── MalformedResponseError    a response that breaks the protocol
        └── KafkaApiError             a response with an error code; the code decides on `retry`
"""


class SidetierError(Exception):
    """Base class of all errors. `retry` is True if the same call can succeed later without any
    change on Sidetier's side.
    """

    retry: bool = False


class ConfigurationError(SidetierError):
    """A setting is unknown, has a wrong type, or contradicts another. The message names it."""


class SegmentError(SidetierError):
    """A local file is not as it should be. The message names the file."""


class SegmentGoneError(SegmentError):
    """The file exists neither under its own name nor under its `.deleted` name."""


class SegmentChangedError(SegmentError):
    """The file changed between the checks before and after a read (truncation rewrites in
    place).
    """

    retry = True


class DamagedSegmentError(SegmentError):
    """The bytes are not whole record batches: a cut tail, a flipped bit, an empty log."""


class UnprovenSegmentError(DamagedSegmentError):
    """A segment marked for deletion. Nothing proves that its records are committed."""


class SegmentEndsElsewhereError(DamagedSegmentError):
    """A segment marked for deletion ends at `next_offset`, not at the next file's base offset.

    Truncation and retention both leave `.deleted` files, so the next file need not be the segment's
    successor.
    """

    def __init__(self, message: str, next_offset: int) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class BatchTooLargeError(SegmentError):
    """A sound record batch is larger, decompressed, than the reader's limit.

    It is stored, and so never counts as missing.
    """


class UnsupportedFormatError(SegmentError):
    """The data has an unknown version, for example message format v0 or v1, or an unknown
    compression codec.

    It is stored, and so never counts as missing.
    """


class ArchiveError(SidetierError):
    """A stored object is not as it should be. The message names the key."""


class MalformedObjectError(ArchiveError):
    """A stored object, such as `offset.wm` or `_metadata`, does not parse."""


class UnknownVersionError(MalformedObjectError):
    """A stored object is of a version that this program does not read."""


class ArchiveConflictError(ArchiveError):
    """Another writer has stored other bytes at the key of a write."""


class StorageError(SidetierError):
    """The store refused a request or failed. The message names the operation and the key."""


class TransientStorageError(StorageError):
    """The same request can succeed later."""

    retry = True


class StoreUnavailableError(TransientStorageError):
    """A 5xx answer, or a connection that was refused, cut or reset."""


class StoreThrottledError(TransientStorageError):
    """The store asks for fewer requests (503 SlowDown, 429)."""


class StoreTimeoutError(TransientStorageError):
    """The attempt's deadline passed. A write may still have succeeded."""


class PermanentStorageError(StorageError):
    """The same request will be refused again."""


class ObjectNotFoundError(PermanentStorageError):
    """No object has this key."""


class PreconditionFailedError(PermanentStorageError):
    """If-None-Match found an object, or If-Match found another version of it."""

    ambiguous: bool = False
    """True if an earlier attempt of the same write may have succeeded. The caller must read the
    object.
    """


class RefusedConditionError(PermanentStorageError):
    """The store refuses a condition that holds: no other writer has changed the object."""


class AccessDeniedError(PermanentStorageError):
    """The store refuses the credentials, or does not know them (401, 403)."""


class ChecksumMismatchError(PermanentStorageError):
    """The store received other bytes than the checksum announced."""


class StoreFullError(PermanentStorageError):
    """The store has no space left, or a quota is used up."""


class MalformedAnswerError(PermanentStorageError):
    """The store's answer lacks a field that S3 promises, or a field cannot be read."""


class EncryptionError(PermanentStorageError):
    """An object cannot be encrypted or decrypted. The message names the object."""


class EncryptionKeyError(EncryptionError):
    """A key is not configured, is not the one that encrypted the object, or cannot be used."""


class DamagedCiphertextError(EncryptionError):
    """An encrypted object was changed, or exchanged for another one. The message names its key."""


class InvalidRequestError(PermanentStorageError):
    """Any other refusal: no such bucket, an unknown storage class, a bad key."""


class LeadershipError(SidetierError):
    """The leadership of partitions could not be read."""


class LeadershipUnavailableError(LeadershipError):
    """The source of leadership does not answer now."""

    retry = True


class MirrorError(SidetierError):
    """A mirror or a restore cannot continue: records are gone, or another process has taken
    over.
    """


class ProducerFencedError(MirrorError):
    """Another process has started with the same transactional id. The message names the id."""


class SourceUnavailableError(MirrorError):
    """The source's brokers have failed for longer than one attempt of a copy waits for them.

    A single process ends with this error. Spark starts a failed task again.
    """

    retry = True


class MalformedRequestError(SidetierError):
    """A request of a Kafka client is larger than allowed, or cannot be decoded."""


class BrokerError(SidetierError):
    """A request to a Kafka broker failed. The message names the broker and the request."""


class BrokerUnavailableError(BrokerError):
    """The connection was refused or cut, or no response came in time.

    The broker may have executed the request.
    """

    retry = True


class BrokerLoginError(BrokerError):
    """The TLS handshake or the SASL authentication failed."""


class UnsupportedVersionError(BrokerError):
    """The broker and this client have no version of a request in common."""


class MalformedResponseError(BrokerError):
    """A response is larger than allowed, answers another request, or cannot be decoded."""


class KafkaApiError(BrokerError):
    """A broker answered with an error code.

    Args:
        message: The text of the error.
        code: The error code of Kafka's protocol, such as 6.
        name: The name of the code, such as `NOT_LEADER_OR_FOLLOWER`.
        retry: Whether Kafka marks the code as retriable.
    """

    def __init__(self, message: str, *, code: int, name: str, retry: bool) -> None:
        super().__init__(message)
        self.code = code
        self.name = name
        self.retry = retry
