"""Every error that Sidetier raises, and whether trying again can help.

::

    SidetierError
    ├── ConfigurationError            a setting is wrong; nothing was touched
    ├── SegmentError                  a local file is not what it should be
    │   ├── SegmentGoneError          no name leads to the file any more
    │   ├── SegmentChangedError       the file changed while it was read
    │   ├── DamagedSegmentError       bytes that no broker would serve
    │   ├── BatchTooLargeError        a sound batch that is larger than a reader's limit
    │   └── UnsupportedFormatError    bytes of a version that is not known here
    ├── ArchiveError                  what is stored is not what it should be
    │   ├── MalformedObjectError      an object of ours or Pinterest's does not parse
    │   └── ArchiveConflictError      another writer has been here
    ├── StorageError
    │   ├── TransientStorageError     retry = True
    │   │   ├── StoreUnavailableError     5xx, connection refused, cut, reset
    │   │   ├── StoreThrottledError       503 SlowDown, 429
    │   │   └── StoreTimeoutError         a deadline passed; the write may have succeeded
    │   └── PermanentStorageError     retry = False
    │       ├── ObjectNotFoundError
    │       ├── PreconditionFailedError   If-Match or If-None-Match refused
    │       ├── AccessDeniedError
    │       ├── ChecksumMismatchError
    │       ├── StoreFullError            no space, or over quota
    │       ├── MalformedAnswerError  an answer that lacks a field, or cannot be read
    │       └── InvalidRequestError       anything else that the store refuses
    ├── LeadershipError
    │   └── LeadershipUnavailableError  retry = True
    ├── MirrorError                   a mirror cannot go on without an operator
    │   ├── ProducerFencedError       another process has taken over the transactional id
    │   └── SourceUnavailableError    retry = True: the source's brokers have failed for too long
    └── BrokerError                   a request to a Kafka broker failed
        ├── BrokerUnavailableError    retry = True: refused, cut, or no response in time
        ├── BrokerLoginError          TLS or SASL: the broker and the client refuse each other
        ├── UnsupportedVersionError   no version of the request is known to both sides
        ├── MalformedResponseError    a response that breaks the protocol
        └── KafkaApiError             a response with an error code; the code decides on `retry`
"""


class SidetierError(Exception):
    """The root; `retry` says whether the same call can succeed later with nothing changed by us."""

    retry: bool = False


class ConfigurationError(SidetierError):
    """A setting is unknown, of a wrong type, or contradicts another; the text names it."""


class SegmentError(SidetierError):
    """A local file is not what it should be; the text names the file."""


class SegmentGoneError(SegmentError):
    """Neither the file's own name nor its `.deleted` name exists."""


class SegmentChangedError(SegmentError):
    """The file changed between the two looks around a read (truncation rewrites in place)."""

    retry = True


class DamagedSegmentError(SegmentError):
    """The bytes are not whole record batches: a cut tail, a flipped bit, an empty log."""


class UnprovenSegmentError(DamagedSegmentError):
    """A deleted segment of which nothing proves that its records are committed."""


class SegmentEndsElsewhereError(DamagedSegmentError):
    """A `.deleted` segment that is whole, and ends at `next_offset`: not where the names beside it
    made it end, since truncation leaves `.deleted` files among those of retention.
    """

    def __init__(self, message: str, next_offset: int) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class BatchTooLargeError(SegmentError):
    """A record batch whose CRC is right, and whose records are more bytes, decompressed, than the
    reader's limit. It is stored, and so never counts as missing.
    """


class UnsupportedFormatError(SegmentError):
    """A version that this code does not know, for example message format v0 or v1, or a compression
    codec. What is stored in one never counts as missing.
    """


class ArchiveError(SidetierError):
    """What lies on the store is not what it should be; the text names the key."""


class MalformedObjectError(ArchiveError):
    """A stored object, such as `offset.wm` or `_metadata`, does not parse."""


class ArchiveConflictError(ArchiveError):
    """Another writer has stored something else where we meant to write."""


class StorageError(SidetierError):
    """The remote store refused or failed; the text names the operation and the key."""


class TransientStorageError(StorageError):
    """The same request can succeed later."""

    retry = True


class StoreUnavailableError(TransientStorageError):
    """A 5xx answer, a refused, cut or reset connection."""


class StoreThrottledError(TransientStorageError):
    """The store asks for fewer requests (503 SlowDown, 429)."""


class StoreTimeoutError(TransientStorageError):
    """The attempt's deadline passed; a write may have succeeded all the same."""


class PermanentStorageError(StorageError):
    """The same request will be refused again."""


class ObjectNotFoundError(PermanentStorageError):
    """No object has this key."""


class PreconditionFailedError(PermanentStorageError):
    """If-None-Match found an object, or If-Match found another version of it."""

    ambiguous: bool = False
    """True where an earlier try of the same write may have succeeded: look at what is there."""


class AccessDeniedError(PermanentStorageError):
    """The store knows us and says no, or does not know us (401, 403)."""


class ChecksumMismatchError(PermanentStorageError):
    """The store received other bytes than the checksum announced."""


class StoreFullError(PermanentStorageError):
    """No space left on the store, or a quota is used up."""


class MalformedAnswerError(PermanentStorageError):
    """The store's answer lacks a field that S3 promises, or has one that cannot be read."""


class InvalidRequestError(PermanentStorageError):
    """Any other refusal: no such bucket, an unknown storage class, a bad key."""


class LeadershipError(SidetierError):
    """Who leads what could not be read."""


class LeadershipUnavailableError(LeadershipError):
    """The source of leadership does not answer now."""

    retry = True


class MirrorError(SidetierError):
    """A mirror or a restore cannot go on: records are gone, or another process has taken over."""


class ProducerFencedError(MirrorError):
    """Another process has started with the same transactional id; the text names the id."""


class SourceUnavailableError(MirrorError):
    """The source's brokers have failed for longer than one attempt of a copy waits for them.

    A single process ends with it. A task of Spark is started again.
    """

    retry = True


class BrokerError(SidetierError):
    """A request to a Kafka broker failed; the text names the broker and the request."""


class BrokerUnavailableError(BrokerError):
    """The connection is refused or cut, or no response came in time.

    The broker may have carried the request out.
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
