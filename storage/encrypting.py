"""A store that encrypts the `.log` objects and tail packs of selected topics, and decrypts every
encrypted one.

All other objects stay as they are: they have offsets, positions, timestamps and producer ids, and
no records. A part of an encrypted object (`PartOfObject`), such as the rest of a segment that a
quarantine has cut, is encrypted also if its topic is no longer selected.

A tail pack has no marker, because each would cost another request every few seconds. So listings
show the size of its ciphertext, all other calls that of its plaintext. The key does not name its
topics: the body does (`RecordsOfTopics`). Packs are created and deleted, and never replaced.

For a `.log`, all calls, listings included, report the plaintext's size; the store itself lists the
ciphertext's size. For a listing, an empty object beside each encrypted `.log`, its marker, has the
size of the ciphertext in its name (`00000000000000000000.log.encrypted-66576`). A listed `.log` is
encrypted if it has a marker of its size. Listings leave markers out.

Order of the durable steps, and what a kill right after each leaves:

1. `put_object` stores the marker. A kill leaves it alone, or beside a `.log` of another writer. It
   names another size than that `.log` has, so it changes nothing.
2. `put_object` stores the `.log`, under the condition of the caller. A kill leaves both. If another
   process has deleted this key between 1 and 2, the kill leaves the `.log` without its marker.
3. `put_object` stores the marker again if it is gone.
4. `delete_object` and `delete_objects` delete the `.log`. A kill leaves its marker, as after 1.
5. They delete its markers. If another process has stored a `.log` of the same size between 4 and 5,
   a kill leaves that `.log` without its marker.
6. They store the marker of such a `.log` again.

`copy_object` takes the steps 1 to 3. Only a kill after 2 or 5 together with such a race loses the
marker of a `.log`. Listings then show the size of the ciphertext, and readers report the end of the
segment as damaged. `sidetier verify` finds the loss, and `sidetier repair` stores the marker again.
A failed request is not a kill: the retry of a put begins at 1, also if its `.log` is stored.

A marker without its `.log` is empty, and is deleted with the next `.log` of that key, or by
`sidetier gc --orphans`.

Until the first sign of encryption (keys in the settings, a marker, metadata of an encrypted
object), this store makes no request of its own.
"""

import io
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from sidetier.segments.errors import (
    DamagedCiphertextError,
    EncryptionError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from sidetier.segments.lru import Lru
from sidetier.storage.bodies import BytesBody, PartOfObject, RecordsOfTopics
from sidetier.storage.checks import check_key, check_options, check_range
from sidetier.storage.checksums import checksum_of_body
from sidetier.storage.encrypted_format import (
    CHUNK_BYTES,
    HEADER_BYTES,
    MAGIC,
    SALT_BYTES,
    SEALED_BYTES,
    EncryptedHeader,
    can_be_encrypted,
    decode_header,
    is_encrypted,
    is_log,
    marker_key,
    markers_prefix,
    may_be_marker,
    missing_key,
    parse_marker,
    place_of,
    plain_size,
    stored_size,
)
from sidetier.storage.port import (
    NO_OPTIONS,
    Body,
    Checksum,
    ChecksumAlgorithm,
    Condition,
    FileBackedStorage,
    IfMatch,
    ObjectHead,
    ObjectSummary,
    PutOptions,
    RemoteStorage,
    StorageCapabilities,
    StoredObject,
)

if TYPE_CHECKING:
    from sidetier.storage.encrypted_streams import ObjectCipher
    from sidetier.storage.encryption_keys import DataKey, Keyring

ENCRYPTION_KEY: Final = "sidetier-encryption"
"""Metadata of an encrypted object: version of the format, and checksum of the plaintext."""
_ENCRYPTION_METADATA: Final = re.compile(r"1 (CRC64NVME|CRC32C) ([0-9a-f]{8}|[0-9a-f]{16})")
_MAX_CIPHERS: Final = 1024
_MAX_ENCRYPTED_VERSIONS: Final = 10_000
_TRIES: Final = 3
_Version = tuple[str, str]
"""Key and etag."""


class EncryptingStorage:
    """Store that encrypts and decrypts `.log` objects and tail packs of another store. Thread-safe.

    Args:
        inner: Store that makes the requests.
        keys: The keys; None to refuse encrypted objects.
        selects: Whether the `.log` of this key gets encrypted; for a tail pack, it is asked for a
            `.log` of each of its topics. Needs keys.
        refuses_plain: Whether a `.log` of this key that is not encrypted is neither stored nor
            read. Needs keys.
    """

    def __init__(
        self,
        inner: RemoteStorage,
        keys: "Keyring | None" = None,
        selects: Callable[[str], bool] = lambda _: False,
        refuses_plain: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._inner = inner
        self._keys = keys
        self._selects = selects
        self._refuses_plain = refuses_plain
        self._is_active = keys is not None
        """Whether an object may be encrypted."""
        self._ciphers = Lru[_Version, "ObjectCipher | None"](_MAX_CIPHERS)
        """The cipher of each version that was read; None for one that is not encrypted."""
        self._encrypted_versions = Lru[_Version, None](_MAX_ENCRYPTED_VERSIONS)
        """Versions that are encrypted by their marker or metadata."""

    @property
    def inner(self) -> RemoteStorage:
        """The store that makes the requests."""
        return self._inner

    @property
    def capabilities(self) -> StorageCapabilities:
        """Capabilities of the inner store."""
        return self._inner.capabilities

    def put_object(self, key: str, body: Body, options: PutOptions = NO_OPTIONS) -> str:
        """See `RemoteStorage`. The checksum is that of the plaintext.

        Raises:
            EncryptionError: It would not be encrypted, and `refuses_plain` refuses that.
        """
        place = place_of(key)
        data_key = None if place is None else self._data_key(key, body)
        if place is None or data_key is None:
            for name in _keys_of_topics(key, body):
                self._check_may_be_plain(name)
            return self._inner.put_object(key, body, options)
        check_key(key)
        notes = check_options(key, options).metadata
        algorithm = self._inner.capabilities.checksum or ChecksumAlgorithm.CRC64NVME
        known = options.checksum or checksum_of_body(body, algorithm)
        encrypted = self._encrypted(key, place, data_key, body, known)
        # Here rather than in the driver: S3 needs it before the bytes, and a driver notes a given
        # checksum with the object, also for a body that it sends in parts.
        is_verified = self._inner.capabilities.checksum is not None
        sealed = checksum_of_body(encrypted, algorithm) if is_verified else None
        if is_log(key):
            self._put_marker(key, encrypted.size)
        etag = self._inner.put_object(
            key,
            encrypted,
            PutOptions(
                {**notes, ENCRYPTION_KEY: f"1 {known.algorithm} {known.value.hex()}"},
                sealed,
                options.condition,
            ),
        )
        if is_log(key):
            self._ensure_marker(key, encrypted.size)
        return etag

    def get_object(self, key: str) -> StoredObject:
        """See `RemoteStorage`."""
        stored = self._inner.get_object(key)
        if not (can_be_encrypted(key) and is_encrypted(stored.data)):
            self._check_may_be_plain(key)
            return stored
        self._is_active = True
        data = decrypted(key, stored.data, self._cipher(stored.data, key))
        return StoredObject(self._plain_head(stored.head), data)

    def get_object_input_stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        *,
        condition: IfMatch | None = None,
    ) -> BinaryIO:
        """See `RemoteStorage`.

        The first range of a version costs one small request more, for its header. Without a
        condition, a request for the head comes before it, so that header and range are of one
        version.

        Raises:
            EncryptionKeyError: The key of the object is not configured, or is another one.
            DamagedCiphertextError: The object belongs to another key. The stream's `read` raises it
                for changed bytes.
            EncryptionError: The object is not encrypted, and `refuses_plain` refuses that.
        """
        if not (self._is_active and can_be_encrypted(key)):
            return self._inner.get_object_input_stream(key, start, end, condition=condition)
        check_range(key, start, end)
        if condition is not None:
            return self._stream(key, start, end, condition)
        for _ in range(_TRIES):
            current = IfMatch(self._inner.head_object(key).etag)
            try:
                return self._stream(key, start, end, current)
            except PreconditionFailedError:
                continue
        raise StoreUnavailableError(f"{key} was replaced {_TRIES} times while it was read")

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        """See `RemoteStorage`. Sizes are those of the plaintext; markers are left out."""
        held: ObjectSummary | None = None
        for row in self._inner.list_objects(prefix, start_after=start_after):
            key = row.key
            if may_be_marker(key) and (marked := parse_marker(key)) is not None:
                self._is_active = True
                if held is not None and marked == (held.key, held.size):
                    size = plain_size(held.size)
                    if size is not None:
                        self._note_encrypted(held.key, held.etag)
                        held = replace(held, size=size)
                    yield held
                    held = None
                continue
            if held is not None:
                yield held
                held = None
            # Its markers are the next rows.
            if is_log(key):
                held = row
            else:
                yield row
        if held is not None:
            yield held

    def unused_markers(self, prefix: str) -> Iterator[ObjectSummary]:
        """Yield the markers below a prefix whose `.log` is not stored, or has another size."""
        log: ObjectSummary | None = None
        for row in self._inner.list_objects(prefix):
            marked = parse_marker(row.key)
            if marked is None:
                log = row if is_log(row.key) else None
            elif log is None or marked != (log.key, log.size):
                yield row

    def list_directories(self, prefix: str) -> list[str]:
        """See `RemoteStorage`."""
        return self._inner.list_directories(prefix)

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        """See `RemoteStorage`. Size and checksums are those of the plaintext."""
        return self._plain_head(self._inner.head_object(key, with_checksum=with_checksum))

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        """See `RemoteStorage`. The marker of a `.log` that is stored is stored again."""
        marked = parse_marker(key) if may_be_marker(key) else None
        if marked is not None or not (self._is_active and is_log(key)):
            self._inner.delete_object(key, condition=condition)
            if marked is not None:
                self._restore_marker(marked[0])
            return
        check_key(key)
        # Listed before the delete: a marker of a `.log` that is written right behind it stays.
        markers = [row.key for row in self._inner.list_objects(markers_prefix(key))]
        self._inner.delete_object(key, condition=condition)
        if markers:
            self._inner.delete_objects(markers)
            self._restore_marker(key)

    def delete_objects(self, keys: Sequence[str]) -> None:
        """See `RemoteStorage`. Markers of `.log` objects cost two listings of the keys' range."""
        logs = [key for key in keys if is_log(key)] if self._is_active else []
        markers, marked_logs, deleted = [], set(), set(logs)
        for row in self._rows_beside(logs):
            marked = parse_marker(row.key)
            if marked is not None and marked[0] in deleted:
                markers.append(row.key)
                marked_logs.add(marked[0])
        self._inner.delete_objects(keys)
        if markers:
            self._inner.delete_objects(markers)
            # A listing costs less than a request for each `.log`, and almost never shows one.
            for row in self._rows_beside(marked_logs):
                if row.key in marked_logs:
                    self._restore_marker(row.key)

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        """See `RemoteStorage`. The copy of an encrypted object is encrypted with the same key.

        Raises:
            EncryptionError: The copy could not be decrypted: the target is another segment.
        """
        size: int | None = None
        if self._is_active and can_be_encrypted(target):
            head = self._inner.head_object(source)
            if ENCRYPTION_KEY in head.metadata:
                if place_of(source) != place_of(target):
                    raise EncryptionError(
                        f"{target}: {source} is encrypted as another object and cannot be copied "
                        "here"
                    )
                if is_log(target):
                    size = head.size
                    self._put_marker(target, size)
        etag = self._inner.copy_object(source, target, condition=condition)
        if size is not None:
            self._ensure_marker(target, size)
        return etag

    def close(self) -> None:
        """See `RemoteStorage`. Closes the inner store as well."""
        self._inner.close()

    def open_file(self, key: str, *, condition: IfMatch | None = None) -> int | None:
        """See `FileBackedStorage`. Only for an inner store that is one."""
        handle = cast("FileBackedStorage", self._inner).open_file(key, condition=condition)
        if handle is None:
            return None
        if not is_encrypted(os.pread(handle, len(MAGIC), 0)):
            try:
                self._check_may_be_plain(key)
            except EncryptionError:
                os.close(handle)
                raise
            return handle
        os.close(handle)
        self._is_active = True
        return None

    # -- writing ------------------------------------------------------------------------------

    def _data_key(self, key: str, body: Body) -> "DataKey | None":
        """Return the data key for a new object; None to store it as it is."""
        if any(map(self._selects, _keys_of_topics(key, body))):
            return cast("Keyring", self._keys).data_key()
        if not isinstance(body, PartOfObject):
            return None
        # That of the whole object: it is at hand, because the part could not be read without it.
        version = IfMatch(self._inner.head_object(body.source).etag)
        cipher = self._cipher_of(body.source, version)
        return None if cipher is None else self._data_key_of(cipher.header, body.source)

    def _encrypted(
        self, key: str, place: str, data_key: "DataKey", body: Body, checksum: Checksum
    ) -> Body:
        from sidetier.storage.encrypted_streams import (  # noqa: PLC0415 - needs cryptography
            EncryptedBody,
            ObjectCipher,
        )

        salt = secrets.token_bytes(SALT_BYTES)
        header = EncryptedHeader(data_key.key_name, data_key.wrapped, salt, body.size, place)
        return EncryptedBody(key, body, ObjectCipher(header, data_key.secret), checksum)

    def _put_marker(self, key: str, size: int) -> None:
        self._inner.put_object(marker_key(key, size), BytesBody(b""))

    def _ensure_marker(self, key: str, size: int) -> None:
        """Store the marker of a new `.log` again if a deletion of the key has removed it."""
        try:
            self._inner.head_object(marker_key(key, size))
        except ObjectNotFoundError:
            self._put_marker(key, size)

    def _restore_marker(self, key: str) -> None:
        """Store the marker of a `.log` that another writer has stored while its key's markers were
        deleted. Both may have the same marker.
        """
        try:
            head = self._inner.head_object(key)
        except ObjectNotFoundError:
            return
        if ENCRYPTION_KEY in head.metadata:
            self._put_marker(key, head.size)

    def _rows_beside(self, logs: Iterable[str]) -> Iterator[ObjectSummary]:
        """List the keys from the first `.log` of each directory to the markers of the last one."""
        by_directory: dict[str, list[str]] = {}
        for key in logs:
            by_directory.setdefault(key[: key.rfind("/") + 1], []).append(key)
        for directory, keys in by_directory.items():
            last, before_first = max(keys), min(keys)[:-1]
            for row in self._inner.list_objects(directory, start_after=before_first):
                if row.key > last and not row.key.startswith(last):
                    break
                yield row

    # -- reading ------------------------------------------------------------------------------

    def _plain_head(self, head: ObjectHead) -> ObjectHead:
        note = head.metadata.get(ENCRYPTION_KEY)
        if note is None:
            return head
        self._note_encrypted(head.key, head.etag)
        match, size = _ENCRYPTION_METADATA.fullmatch(note), plain_size(head.size)
        if match is None or size is None:
            raise EncryptionError(
                f"{head.key}: the metadata {ENCRYPTION_KEY}: {note!r} does not fit an object of "
                f"{head.size} bytes"
            )
        # Both checksums were computed of the same bytes, so the verified one vouches for the other.
        plain = Checksum(ChecksumAlgorithm(match[1]), bytes.fromhex(match[2]))
        noted, own = head.checksum, head.own_checksum
        if noted is None or own is None or noted.algorithm is not own.algorithm:
            own = None
        elif own == noted:
            own = plain
        # Otherwise the ciphertext was replaced: its checksum is that of no plaintext.
        notes = {name: value for name, value in head.metadata.items() if name != ENCRYPTION_KEY}
        return replace(
            head,
            size=size,
            checksum=None if noted is None else plain,
            own_checksum=own,
            metadata=notes,
        )

    def _stream(self, key: str, start: int, end: int | None, version: IfMatch) -> BinaryIO:
        cipher = self._cipher_of(key, version)
        if cipher is None:
            return self._inner.get_object_input_stream(key, start, end, condition=version)
        from sidetier.storage.encrypted_streams import (  # noqa: PLC0415 - needs cryptography
            DecryptingStream,
        )

        size = cipher.header.size
        end = size if end is None else min(end, size)
        is_empty = start >= end
        if is_empty:
            # The last chunk is read all the same: without it, a changed size would not be noticed.
            start, end = (cipher.header.chunks - 1) * CHUNK_BYTES, size
        source = self._inner.get_object_input_stream(
            key,
            HEADER_BYTES + start // CHUNK_BYTES * SEALED_BYTES,
            HEADER_BYTES + max(1, -(-end // CHUNK_BYTES)) * SEALED_BYTES,
            condition=version,
        )
        stream = DecryptingStream(key, source, cipher, start, end)
        if is_empty:
            with stream:
                stream.check()
            return io.BytesIO()
        return io.BufferedReader(stream, CHUNK_BYTES)

    def _cipher_of(self, key: str, version: IfMatch) -> "ObjectCipher | None":
        """Return the cipher of a version; None if it is not encrypted. One request, if unknown."""
        return self._ciphers.get_or((key, version.etag), lambda: self._read_cipher(key, version))

    def _read_cipher(self, key: str, version: IfMatch) -> "ObjectCipher | None":
        is_marked = (key, version.etag) in self._encrypted_versions
        with self._inner.get_object_input_stream(key, 0, HEADER_BYTES, condition=version) as stream:
            data = stream.read()
        if is_marked and not is_encrypted(data):
            raise DamagedCiphertextError(
                f"{key} is encrypted according to its marker or metadata, but does not begin as an "
                "encrypted object does"
            )
        cipher = self._cipher(data, key) if is_encrypted(data) else None
        if cipher is None:
            self._check_may_be_plain(key)
        return cipher

    def _cipher(self, data: bytes, key: str) -> "ObjectCipher":
        header = cast("EncryptedHeader", decode_header(data, key))
        data_key = self._data_key_of(header, key)
        from sidetier.storage.encrypted_streams import (  # noqa: PLC0415 - needs cryptography
            ObjectCipher,
        )

        return ObjectCipher(header, data_key.secret)

    def _data_key_of(self, header: EncryptedHeader, key: str) -> "DataKey":
        if self._keys is None:
            raise missing_key(header.key_name, key)
        from sidetier.storage.encryption_keys import DataKey  # noqa: PLC0415 - needs cryptography

        secret = self._keys.unwrap(header.key_name, header.wrapped_key, key)
        return DataKey(header.key_name, header.wrapped_key, secret)

    def _check_may_be_plain(self, key: str) -> None:
        """Raise EncryptionError for a `.log` that may not be stored or read without encryption."""
        if is_log(key) and self._refuses_plain(key):
            raise EncryptionError(
                f"{key} is not encrypted, and storage.encryption.refuse_plain names its topic: "
                "restore the encrypted object, or remove the topic from refuse_plain"
            )

    def _note_encrypted(self, key: str, etag: str) -> None:
        self._is_active = True
        self._encrypted_versions.put((key, etag), None)


def _keys_of_topics(key: str, body: Body) -> list[str]:
    """Return the keys by which the topics of an object are selected: its own, or for a body with
    several topics, one of a segment of each.
    """
    if not isinstance(body, RecordsOfTopics):
        return [key]
    return [key, *(f"{topic}-0/{0:020d}.log" for topic in sorted(body.topics))]


def decrypted(key: str, data: bytes, cipher: "ObjectCipher") -> bytes:
    """Return the plaintext of a whole object, all of which is checked."""
    from sidetier.storage.encrypted_streams import (  # noqa: PLC0415 - needs cryptography
        DecryptingStream,
    )

    header = cipher.header
    if len(data) != stored_size(header.size):
        raise DamagedCiphertextError(
            f"{key}: the encrypted object has {len(data)} bytes, and by its header "
            f"{stored_size(header.size)}"
        )
    source = io.BytesIO(data[HEADER_BYTES:])
    with DecryptingStream(key, source, cipher, 0, header.size) as stream:
        if not header.size:
            stream.check()
        return stream.readall()
