"""The HDFS driver on hdfs-native, a client in Rust without a JVM and without libhdfs.

An object is a plain file that any program can read. hdfs-native has no extended attributes, and
metadata in a trailer would follow the footer of a Parquet file, so metadata is in a separate file.

::

    <root>/<key>                                          bytes of the object
    <root>/_sidetier-store/new/<nonce>                    file that is being written
    <root>/_sidetier-store/meta/<xx>/<hash>/<etag>.json   metadata and checksum of a version
    <root>/_sidetier-store/swaps/<hash>-<etag>/           replacement or deletion of a version

The separate file, the record, is named by the SHA-256 of the key and by the etag. The etag consists
of size and modification time of the object's file; a rename keeps both. The record is created
before the version is published, so both become visible in one step. Only one version can have an
etag, because its record is created without overwrite: another writer then uses a time one
millisecond later. The time comes from the NameNode. It is later than the time of the replaced
version, even if the NameNode's clock was set back.

An object is created by renaming `new/<nonce>` to the key without overwrite, which the NameNode does
atomically. HDFS has no rename that depends on the version of its target, so a version is replaced
in six steps:

1. Create the directory `swaps/<hash>-<etag>/<nonce>`, with the etag of the version to replace.
2. Check that the key still has this etag; refuse the write otherwise.
3. Move `new/<nonce>` to `swaps/<hash>-<etag>/<nonce>/v`.
4. Rename `swaps/<hash>-<etag>/<nonce>` to `swaps/<hash>-<etag>/next` without overwrite. This claim
   succeeds for one of several writers; only this writer's bytes can replace this etag.
5. Rename `next/v` over the key. `next` stays, so that no other writer can claim this etag.
6. Delete `swaps/<hash>-<etag>` with the directories of all other writers, then the old record.

A slow writer cannot replace a later version. Step 4 fails unless its directory still exists and
`next` is free. If another writer completed a swap of the same etag in between, either `next` exists
or `swaps/<hash>-<etag>` was deleted together with the slow writer's directory. Step 5 moves `v`,
which exists only once, so a second rename fails.

A kill before step 4 leaves files that are never read. A kill after step 4 leaves the old version
visible, and the claim. The next writer that wants to replace or delete that version finds the
claim, carries out steps 5 and 6, and compares its own condition with the new version. A kill after
step 5 leaves the new version, and an empty directory.

A delete is the same with a directory `next/d` in place of the file `next/v`. Its step 5 moves the
key's file to `next/d/gone`, which exists at most once and which step 6 deletes.

These guarantees hold between writers that use this module. They do not cover other programs that
change the files.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, BinaryIO, Final, NoReturn
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from sidetier.segments.errors import (
    ConfigurationError,
    InvalidRequestError,
    ObjectNotFoundError,
    StorageError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.storage.attempt import AttemptStream, BodyFailedError, DeadlinePassedError
from sidetier.storage.checks import (
    check_condition,
    check_key,
    check_options,
    check_process,
    check_range,
)
from sidetier.storage.checksums import expect_checksum
from sidetier.storage.file_records import Identity, Record, decode, encode, pick, undescribed
from sidetier.storage.hdfs_client import HdfsClient, HdfsFile, translation
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
    StoredObject,
)
from sidetier.storage.settings import AttemptDeadline, HdfsSettings

if TYPE_CHECKING:
    from hdfs_native import AsyncFileWriter


RESERVED: Final = "_sidetier-store"
_MAX_TRIES: Final = 100
"""Maximum tries of a step that other writers of the key can undo meanwhile."""
_MS: Final = 1_000_000
"""Nanoseconds per millisecond: HDFS keeps times in ms."""


class Versions:
    """The versions of the objects below a root.

    Methods raise StorageError. After a transient error the step may have been carried out.
    """

    def __init__(self, client: HdfsClient, root: str) -> None:
        self._client = client
        self._root = root
        self._own = f"{root}/{RESERVED}"

    def path(self, key: str) -> str:
        """Return the path of the object's file."""
        return f"{self._root}/{key}"

    def temporary(self) -> str:
        """Return a new path for a file that is being written."""
        return f"{self._own}/new/{uuid4().hex}"

    def identity(self, key: str) -> Identity | None:
        """Return the identity of the current version; None if there is no object."""
        return self._client.identity(self.path(key))

    def record(self, key: str) -> Record | None:
        """Return the record of the current version; None if there is no object."""
        for _ in range(_MAX_TRIES):
            identity = self.identity(key)
            if identity is None:
                return None
            record = self._stored_record(key, identity)
            if record is not None:
                return record
            # No record, and still the same version: another program has
            # written the file. A record that was only missing because
            # the version changed in between is read in the next round.
            if self.identity(key) == identity:
                return undescribed(identity)
        raise StoreUnavailableError(
            f"head {key}: other writers replace it faster than it can be read"
        )

    def open(self, key: str) -> tuple[HdfsFile, Identity]:
        """Open the current version for reading.

        Raises:
            FileNotFoundError: There is no object.
        """
        for _ in range(_MAX_TRIES):
            identity = self.identity(key)
            if identity is None:
                raise FileNotFoundError(self.path(key))
            with suppress(FileNotFoundError):
                opened = self._client.open(self.path(key))
                # hdfs-native does not report which file it opened, so compare before and after.
                if self.identity(key) == identity:
                    return opened, identity
        raise StoreUnavailableError(
            f"get {key}: other writers replace it faster than it can be read"
        )

    def close(
        self,
        key: str,
        writer: "AsyncFileWriter",
        temporary: str,
        described: Record,
    ) -> Record:
        """Close the temporary file and store its record.

        Args:
            key: Key of the object.
            writer: Writer of the temporary file, with all bytes written.
            temporary: Path of the temporary file.
            described: Size, metadata and checksum; etag and time are chosen here.

        Returns:
            The record as stored.
        """
        opened, present = self._client.identity(temporary), self.identity(key)
        if opened is None:
            raise StoreUnavailableError(f"put {key}: {temporary} is gone")
        # Until the file is closed, its modification time is the time of its creation.
        wanted = _dated(described, max(opened.modified_ns, _later(present)))
        path = self._record_path(key, wanted.etag)
        # Another version has this etag: take the next free millisecond.
        if not self._client.close_and_write(temporary, writer, path, encode(key, (wanted,))):
            return self._describe(key, temporary, _dated(wanted, wanted.identity.modified_ns + _MS))
        self._client.set_modified(temporary, wanted.identity.modified_ms)
        return wanted

    def publish(self, key: str, temporary: str, record: Record, condition: Condition | None) -> str:
        """Make the closed temporary file the key's object if the condition holds.

        Returns:
            The etag of the new version.

        Raises:
            PreconditionFailedError: The condition does not hold; nothing is published.
        """
        try:
            for _ in range(_MAX_TRIES):
                present = self.identity(key)
                # Read again in each round: another writer may have replaced the version since.
                check_condition(key, condition, None if present is None else etag_of(present))
                # The version to replace is newer than this file: its
                # time must move on, because etags consist of it.
                if record.identity.modified_ns < _later(present):
                    self._forget(key, record.etag)
                    record = self._describe(key, temporary, _dated(record, _later(present)))
                if present is None:
                    done = self._create(key, temporary)
                else:
                    done = self._swap(key, temporary, present)
                if done:
                    return record.etag
                if self._client.identity(temporary) is None:
                    # Another writer deleted it in step 6. If the condition still holds, the
                    # transient error makes the caller send the body again.
                    check_condition(key, condition, self._etag(key))
                    raise StoreUnavailableError(f"put {key}: another writer was faster")
        except StorageError as error:
            # After a transient error the version may be published, and its record must stay.
            if not error.retry:
                self._forget(key, record.etag)
            raise
        raise StoreUnavailableError(f"put {key}: other writers were faster {_MAX_TRIES} times")

    def remove(self, key: str, condition: Condition | None) -> None:
        """Delete the object if the condition holds; a missing object is not an error."""
        for _ in range(_MAX_TRIES):
            present = self.identity(key)
            if present is None:
                return
            check_condition(key, condition, etag_of(present))
            slot, mine = self._slot(key, present)
            # The directory is created before the comparison, for the reason given in `_swap`.
            self._client.make_directory(f"{mine}/d")
            if self.identity(key) == present and self._claim(mine, slot):
                self._complete(key, slot, present)
                self._remove_empty_parents(key)
                return
            self._client.delete(mine, recursive=True)
            self._delete_if_empty(slot)
            self._help(key, slot, present)
        raise StoreUnavailableError(f"delete {key}: other writers were faster {_MAX_TRIES} times")

    def _create(self, key: str, temporary: str) -> bool:
        try:
            self._client.rename_to_new_place(temporary, self.path(key))
        except FileExistsError:
            return False
        except FileNotFoundError as error:
            # A concurrent delete removed the parent as empty after it had been created.
            raise StoreUnavailableError(f"put {key}: {error}") from error
        return True

    def _swap(self, key: str, temporary: str, present: Identity) -> bool:
        slot, mine = self._slot(key, present)
        # The directory is created before the comparison: a swap that completes in between deletes
        # the directory, so step 4 fails. In the other order an old version could replace a new one.
        self._client.make_directory(mine)
        if self.identity(key) != present:
            self._client.delete(mine, recursive=True)
            self._delete_if_empty(slot)
            return False
        try:
            self._client.rename(temporary, f"{mine}/v")
        except FileNotFoundError:
            return False  # the swap directory was deleted: another writer replaced the version
        if self._claim(mine, slot):
            # From here on the write cannot be undone: any writer may complete it (`_help`).
            self._complete(key, slot, present)
            return True
        with suppress(FileNotFoundError):
            # Moved back for the next round. If the other writer has deleted it with the swap
            # directory, the body must be sent again.
            self._client.rename(f"{mine}/v", temporary)
        self._help(key, slot, present)
        return False

    def _claim(self, mine: str, slot: str) -> bool:
        try:
            self._client.rename(mine, f"{slot}/next")
        except (FileExistsError, FileNotFoundError):
            return False
        return True

    def _help(self, key: str, slot: str, present: Identity) -> None:
        """Complete another writer's claim, if there is one: that writer may be dead."""
        if self._client.exists(f"{slot}/next"):
            self._complete(key, slot, present)

    def _complete(self, key: str, slot: str, replaced: Identity) -> None:
        """Carry out steps 5 and 6. Another writer may do the same concurrently."""
        try:
            self._client.rename(f"{slot}/next/v", self.path(key), overwrite=True)
        except FileNotFoundError:
            if self._client.exists(f"{slot}/next/d"):
                with suppress(FileNotFoundError, FileExistsError):
                    self._client.rename(self.path(key), f"{slot}/next/d/gone")
        # After the rename: until then, `next` keeps other writers from claiming this version.
        self._client.delete(slot, recursive=True)
        # Last: a reader that has the old identity finds its record as long as possible.
        self._forget(key, etag_of(replaced))

    def _describe(self, key: str, temporary: str, record: Record) -> Record:
        """Store the record of the closed temporary file under the first time that is free."""
        for _ in range(_MAX_TRIES):
            with suppress(FileExistsError):
                self._client.write_small(
                    self._record_path(key, record.etag), encode(key, (record,))
                )
                self._client.set_modified(temporary, record.identity.modified_ms)
                return record
            record = _dated(record, record.identity.modified_ns + _MS)
        raise StoreUnavailableError(f"put {key}: {_MAX_TRIES} other versions have the same time")

    def _etag(self, key: str) -> str | None:
        identity = self.identity(key)
        return None if identity is None else etag_of(identity)

    def _stored_record(self, key: str, identity: Identity) -> Record | None:
        try:
            data = self._client.read_small(self._record_path(key, etag_of(identity)))
        except FileNotFoundError:
            return None
        return pick(decode(data), identity)

    def _forget(self, key: str, etag: str) -> None:
        """Delete an obsolete record. If that fails the record stays, but is never read."""
        with suppress(StorageError):
            self._client.delete(self._record_path(key, etag))

    def _remove_empty_parents(self, key: str) -> None:
        folders = [f"{self._own}/meta/{_hash(key)[:2]}/{_hash(key)}"]
        parts = key.split("/")[:-1]
        folders += [self.path("/".join(parts[:count])) for count in range(len(parts), 0, -1)]
        for folder in folders:
            self._delete_if_empty(folder)

    def _delete_if_empty(self, folder: str) -> None:
        with suppress(StorageError):
            self._client.delete(folder)

    def _slot(self, key: str, present: Identity) -> tuple[str, str]:
        slot = f"{self._own}/swaps/{_hash(key)}-{etag_of(present)}"
        return slot, f"{slot}/{uuid4().hex}"

    def _record_path(self, key: str, etag: str) -> str:
        name = _hash(key)
        return f"{self._own}/meta/{name[:2]}/{name}/{etag}.json"


def _later(present: Identity | None) -> int:
    """Return the earliest time for a version that replaces `present`, in ns since 1970."""
    return 0 if present is None else present.modified_ns + _MS


def _dated(record: Record, modified_ns: int) -> Record:
    identity = replace(record.identity, modified_ns=modified_ns)
    return replace(record, identity=identity, etag=etag_of(identity))


def etag_of(identity: Identity) -> str:
    """Return the etag of the version with this identity."""
    return undescribed(identity).etag


def _hash(key: str) -> str:
    return sha256(key.encode()).hexdigest()


_LONGEST_COMPONENT: Final = 255
"""Maximum bytes per path component: default of `dfs.namenode.fs-limits.max-component-length`."""
_ATTEMPTS: Final = "dfs.client.failover.max.attempts"
_FAILOVERS: Final = "3"
"""Tries to find the active NameNode of a name service. Hadoop's default of 15 takes three minutes,
and the retry layer above this store tries again anyway."""


class HdfsStorage:
    """Directory of HDFS. Conditional writes hold between processes; see the module.

    A key cannot be both a file and a directory (`a` and `a/b`). A key component has at most 255
    bytes and no colon, which HDFS refuses. HDFS verifies its own block checksums; the checksum of
    an object is compared here, before the object becomes visible.

    The driver does not retry, except where hdfs-native could not send a request at all. A process
    that was forked after a request raises InvalidRequestError.
    """

    def __init__(
        self,
        url: str,
        settings: HdfsSettings | None = None,
        deadline: AttemptDeadline | None = None,
    ) -> None:
        """Create the client; no request is made.

        Args:
            url: `hdfs://host:port/directory`, `hdfs://nameservice/directory`, or
                `hdfs:///directory` for Hadoop's `fs.defaultFS`.
            settings: Hadoop settings.
            deadline: Deadline of one attempt.

        Raises:
            ConfigurationError: The settings do not determine the NameNodes.
        """
        settings = settings or HdfsSettings()
        self._deadline = deadline or AttemptDeadline()
        self._root = _root(url)
        self._client = _client(url, settings, self._deadline)
        self._versions = Versions(self._client, self._root)
        self.url = url.rstrip("/")
        """URL of the root, without a trailing slash."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("a store holds connections and is not pickled: open one from the settings")

    @property
    def capabilities(self) -> StorageCapabilities:
        """Conditional writes; no checksum is verified on arrival."""
        return StorageCapabilities(conditional_writes=True, checksum=None)

    def put_object(self, key: str, body: Body, options: PutOptions = NO_OPTIONS) -> str:
        """See `RemoteStorage`. The bytes sent are compared with the given checksum here."""
        self._check(key)
        options = check_options(key, options)
        with body.open() as raw:
            stream = AttemptStream(raw, body.size, self._deadline.seconds(body.size))
            try:
                return self._put(key, stream, options)
            except DeadlinePassedError:
                raise StoreTimeoutError(f"put {self._place(key)}: past its deadline") from None
            except BodyFailedError as error:
                raise stream.failure or error from None

    def get_object(self, key: str) -> StoredObject:
        """Read again, a few times, while the file and its record are of different versions."""
        self._check(key)
        for _ in range(_MAX_TRIES):
            with self._translated("get", key):
                opened, identity = self._versions.open(key)
                record = self._versions.record(key)
            # Bytes and metadata must be of one version. The record was
            # read after the file was opened, and may be a later one.
            if record is not None and record.identity == identity:
                with opened.stream(0, identity.size) as stream:
                    return StoredObject(record.head(key), stream.read())
        raise StoreUnavailableError(
            f"get {self._place(key)}: other writers replace it faster than it can be read"
        )

    def get_object_input_stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        *,
        condition: IfMatch | None = None,
    ) -> BinaryIO:
        """A replaced version stays readable until the DataNodes delete its blocks; then the stream
        raises a transient error.
        """
        self._check(key)
        check_range(key, start, end)
        with self._translated("get", key):
            opened, identity = self._versions.open(key)
        check_condition(key, condition, etag_of(identity))
        return opened.stream(start, identity.size if end is None else min(end, identity.size))

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        """Each directory is read completely before its keys are yielded."""
        check_process()
        folder = prefix.rpartition("/")[0]
        if not _can_be(folder):
            return
        base = f"{folder}/" if folder else ""
        with self._translated("list", prefix):
            for key, identity in self._walk(base, prefix.encode(), start_after.encode()):
                yield ObjectSummary(key, identity.size, etag_of(identity), identity.modified_ms)

    def list_directories(self, prefix: str) -> list[str]:
        """List one directory; empty directories are included."""
        check_process()
        parent = prefix.rpartition("/")[0]
        if not _can_be(parent):
            return []
        base = f"{parent}/" if parent else ""
        with self._translated("list", prefix):
            entries = self._client.entries(f"{self._root}/{parent}".rstrip("/"))
        names = (f"{base}{entry.name}/" for entry in entries if entry.identity is None)
        shown = (name for name in names if name.startswith(prefix) and name != f"{RESERVED}/")
        return sorted(shown, key=str.encode)

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        """The checksum is part of the object's record."""
        del with_checksum  # HDFS has checksums of blocks only
        return self._record(key).head(key)

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        """The condition and the delete are one atomic decision. Directories that become empty are
        deleted as well.
        """
        self._check(key)
        with self._translated("delete", key):
            self._versions.remove(key, condition)

    def delete_objects(self, keys: Sequence[str]) -> None:
        """Delete one object after the other."""
        for key in keys:
            self.delete_object(key)

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        """HDFS has no copy, so the bytes are read and written again."""
        self._check(target)
        record = self._record(source)
        with self.get_object_input_stream(source, condition=IfMatch(record.etag)) as stream:
            size = record.identity.size
            window = AttemptStream(stream, size, self._deadline.seconds(size))
            try:
                options = PutOptions(record.metadata, record.checksum, condition)
                return self._put(target, window, options)
            except DeadlinePassedError:
                raise StoreTimeoutError(f"copy {self._place(target)}: past its deadline") from None
            except BodyFailedError as error:
                raise window.failure or error from None

    def close(self) -> None:
        """The connections belong to hdfs-native and stay open."""

    def _put(self, key: str, stream: AttemptStream, options: PutOptions) -> str:
        checksum, condition = options.checksum, options.condition
        if condition is not None:
            # Refuse before many bytes are sent. `publish` checks again afterwards.
            present = self._versions.identity(key)
            check_condition(key, condition, None if present is None else etag_of(present))
        temporary = self._versions.temporary()
        algorithm = checksum.algorithm if checksum else ChecksumAlgorithm.CRC64NVME
        try:
            with self._translated("put", key):
                writer, actual = self._client.send(temporary, stream, algorithm)
                expect_checksum(key, checksum, actual)
                described = Record(Identity(len(stream), 0), "", options.metadata, actual)
                record = self._versions.close(key, writer, temporary, described)
                return self._versions.publish(key, temporary, record, condition)
        # Also after a signal: only this process knows the temporary file's name.
        except BaseException:
            with suppress(StorageError):
                self._client.delete(temporary)
            raise

    def _walk(self, base: str, prefix: bytes, after: bytes) -> Iterator[tuple[str, Identity]]:
        """Yield the keys below a directory with their files, in order of the keys' UTF-8 bytes.

        The NameNode sorts names by signed bytes and ignores the slash after a directory, so each
        directory is sorted here. Directories that cannot contain a matching key are not listed.
        """
        entries = self._client.entries(f"{self._root}/{base}".rstrip("/"))
        named = [
            (f"{base}{row.name}{'' if row.identity else '/'}", row.identity) for row in entries
        ]
        for key, identity in sorted(named, key=lambda row: row[0].encode()):
            name = key.encode()
            shared = min(len(name), len(prefix))
            if name[:shared] != prefix[:shared] or key == f"{RESERVED}/":
                continue
            if identity is None:
                # A directory at or before `after` can still
                # have later keys if `after` is within it.
                if name > after or after.startswith(name):
                    yield from self._walk(key, prefix, after)
            elif len(name) >= len(prefix) and name > after:
                yield key, identity

    def _record(self, key: str) -> Record:
        self._check(key)
        with self._translated("head", key):
            record = self._versions.record(key)
        if record is None:
            raise ObjectNotFoundError(f"head {self._place(key)}: no such object")
        return record

    def _check(self, key: str) -> None:
        check_process()
        check_key(key)
        # The limit on the length applies to the whole path. A key has no leading slash.
        check_key(f"{self._root}/{key}"[1:])
        if ":" in key:
            raise InvalidRequestError(f"key {key!r}: HDFS refuses a colon in a name")
        parts = key.split("/")
        if parts[0] == RESERVED:
            raise InvalidRequestError(f"key {key!r}: {RESERVED} is reserved for the store")
        if any(len(part.encode()) > _LONGEST_COMPONENT for part in parts):
            raise InvalidRequestError(
                f"key {key!r}: a component is longer than {_LONGEST_COMPONENT} bytes"
            )

    @contextmanager
    def _translated(self, operation: str, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, FileExistsError) as error:
            raise translation(operation, self._place(key), error) from error

    def _place(self, key: str) -> str:
        return f"{self.url}/{key}"


def _can_be(directory: str) -> bool:
    """Whether a key can have this directory: keys have no empty, `.` or `..` components."""
    return not directory or {"", ".", ".."}.isdisjoint(directory.split("/"))


def _root(url: str) -> str:
    path = unquote(urlsplit(url).path).strip("/")
    if not path:
        raise ConfigurationError(
            f"storage url {url!r} must name a directory: hdfs://host:port/path"
        )
    return f"/{path}"


def _client(url: str, settings: HdfsSettings, deadline: AttemptDeadline) -> HdfsClient:
    parts = urlsplit(url)
    if parts.username is not None:
        raise ConfigurationError(
            f"storage url {url!r} names a user: set the environment's HADOOP_USER_NAME instead"
        )
    # With a port there is one NameNode, and nothing to fail over to.
    properties = {_ATTEMPTS: "0" if parts.port else _FAILOVERS, **dict(settings.properties)}
    config_dir = settings.config_dir
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigurationError(f"storage.hdfs.config_dir {config_dir} is not a directory")
    try:
        return HdfsClient(
            f"hdfs://{parts.netloc}",
            properties,
            None if config_dir is None else str(config_dir),
            deadline,
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise ConfigurationError(
            f"storage url {url!r}: {error}: give the NameNode's port, or a Hadoop configuration "
            "directory as storage.hdfs.config_dir"
        ) from error
