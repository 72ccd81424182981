"""The HDFS driver on hdfs-native, a client in Rust without a JVM and without libhdfs.

An object is a plain file that any program can read. `hdfs_versions` describes how an object is
written, replaced and deleted so that conditional writes hold between processes, and what a kill
leaves behind.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final, NoReturn
from urllib.parse import unquote, urlsplit

from sidetier.segments.errors import (
    ConfigurationError,
    InvalidRequestError,
    ObjectNotFoundError,
    StorageError,
    StoreTimeoutError,
    StoreUnavailableError,
)
from sidetier.storage.attempt import AttemptStream, BodyFailedError, DeadlinePassedError
from sidetier.storage.checks import check_condition, check_key, check_metadata, check_range
from sidetier.storage.checksums import expect_checksum
from sidetier.storage.forks import check_process
from sidetier.storage.hdfs_client import HdfsClient, translation
from sidetier.storage.hdfs_versions import RESERVED, Versions, etag_of
from sidetier.storage.local_records import Identity, Record
from sidetier.storage.port import (
    Body,
    Checksum,
    ChecksumAlgorithm,
    Condition,
    IfMatch,
    ObjectHead,
    ObjectSummary,
    StorageCapabilities,
    StoredObject,
)
from sidetier.storage.settings import AttemptDeadline, HdfsSettings

_LONGEST_COMPONENT: Final = 255
"""Maximum bytes per path component: default of `dfs.namenode.fs-limits.max-component-length`."""
_LOOKS: Final = 100
"""Maximum tries to open an object that other writers replace meanwhile."""
_ATTEMPTS: Final = "dfs.client.failover.max.attempts"
_FAILOVERS: Final = "3"
"""Tries to find the active NameNode of a name service. Hadoop's default of 15 takes three minutes,
and the retry layer above this store tries again anyway."""


class HdfsStorage:
    """Directory of HDFS. Conditional writes hold between processes; see `hdfs_versions`.

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

    def put_object(
        self,
        key: str,
        body: Body,
        *,
        metadata: Mapping[str, str] | None = None,
        checksum: Checksum | None = None,
        condition: Condition | None = None,
    ) -> str:
        """See `RemoteStorage`. The bytes sent are compared with the given checksum here."""
        self._check(key)
        checked = check_metadata(key, metadata)
        with body.open() as raw:
            stream = AttemptStream(raw, body.size, self._deadline.seconds(body.size))
            try:
                return self._put(key, stream, checked, checksum, condition)
            except DeadlinePassedError:
                raise StoreTimeoutError(f"put {self._place(key)}: past its deadline") from None
            except BodyFailedError as error:
                raise stream.failure or error from None

    def get_object(self, key: str) -> StoredObject:
        """See `RemoteStorage`."""
        self._check(key)
        for _ in range(_LOOKS):
            with self._found("get", key):
                opened, identity = self._versions.open(key)
                record = self._versions.record(key)
            if record is not None and record.identity == identity:
                with opened.stream(0, identity.size) as stream:
                    return StoredObject(record.head(key), stream.read())
        raise StoreUnavailableError(f"get {self._place(key)}: it is overwritten too fast")

    def get_object_input_stream(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        *,
        condition: IfMatch | None = None,
    ) -> BinaryIO:
        """See `RemoteStorage`.

        A replaced version stays readable until the DataNodes delete its blocks; then the stream
        raises a transient error.
        """
        self._check(key)
        check_range(key, start, end)
        with self._found("get", key):
            opened, identity = self._versions.open(key)
        check_condition(key, condition, etag_of(identity))
        return opened.stream(start, identity.size if end is None else min(end, identity.size))

    def list_objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectSummary]:
        """See `RemoteStorage`. Each directory is read completely before its keys are yielded."""
        check_process()
        folder = prefix.rpartition("/")[0]
        if not _can_be(folder):
            return
        base = f"{folder}/" if folder else ""
        with self._found("list", prefix):
            for key, identity in self._walk(base, prefix.encode(), start_after.encode()):
                yield ObjectSummary(key, identity.size, etag_of(identity), identity.modified_ms)

    def list_directories(self, prefix: str) -> list[str]:
        """See `RemoteStorage`. Lists one directory and includes empty directories."""
        check_process()
        parent = prefix.rpartition("/")[0]
        if not _can_be(parent):
            return []
        base = f"{parent}/" if parent else ""
        with self._found("list", prefix):
            entries = self._client.entries(f"{self._root}/{parent}".rstrip("/"))
        names = (f"{base}{entry.name}/" for entry in entries if entry.identity is None)
        shown = (name for name in names if name.startswith(prefix) and name != f"{RESERVED}/")
        return sorted(shown, key=str.encode)

    def head_object(self, key: str, *, with_checksum: bool = False) -> ObjectHead:
        """See `RemoteStorage`. The checksum is part of the object's record."""
        del with_checksum  # the checksum is always in the record
        return self._record(key).head(key)

    def delete_object(self, key: str, *, condition: IfMatch | None = None) -> None:
        """See `RemoteStorage`.

        The condition and the delete are one atomic decision. Directories that become empty are
        deleted as well.
        """
        self._check(key)
        with self._found("delete", key):
            self._versions.remove(key, condition)

    def copy_object(self, source: str, target: str, *, condition: Condition | None = None) -> str:
        """See `RemoteStorage`. HDFS has no copy, so the bytes are read and written again."""
        self._check(target)
        record = self._record(source)
        with self.get_object_input_stream(source, condition=IfMatch(record.etag)) as stream:
            size = record.identity.size
            window = AttemptStream(stream, size, self._deadline.seconds(size))
            try:
                return self._put(target, window, record.metadata, record.checksum, condition)
            except DeadlinePassedError:
                raise StoreTimeoutError(f"copy {self._place(target)}: past its deadline") from None
            except BodyFailedError as error:
                raise window.failure or error from None

    def close(self) -> None:
        """See `RemoteStorage`. The connections belong to hdfs-native and stay open."""

    def _put(
        self,
        key: str,
        stream: AttemptStream,
        metadata: Mapping[str, str],
        checksum: Checksum | None,
        condition: Condition | None,
    ) -> str:
        if condition is not None:
            # Refuse before many bytes are sent. `publish` checks again afterwards.
            present = self._versions.identity(key)
            check_condition(key, condition, None if present is None else etag_of(present))
        temporary = self._versions.temporary()
        algorithm = checksum.algorithm if checksum else ChecksumAlgorithm.CRC64NVME
        try:
            with self._found("put", key):
                writer, actual = self._client.send(temporary, stream, algorithm)
                expect_checksum(key, checksum, actual)
                described = Record(Identity(len(stream), 0), "", metadata, actual)
                record = self._versions.close(key, writer, temporary, described)
                return self._versions.publish(key, temporary, record, condition)
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
                if name > after or after.startswith(name):
                    yield from self._walk(key, prefix, after)
            elif len(name) >= len(prefix) and name > after:
                yield key, identity

    def _record(self, key: str) -> Record:
        self._check(key)
        with self._found("head", key):
            record = self._versions.record(key)
        if record is None:
            raise ObjectNotFoundError(f"head {self._place(key)}: no such object")
        return record

    def _check(self, key: str) -> None:
        check_process()
        check_key(key)
        check_key(f"{self._root}/{key}"[1:])
        if ":" in key:
            raise InvalidRequestError(f"key {key!r}: HDFS refuses a colon in a name")
        parts = key.split("/")
        if parts[0] == RESERVED:
            raise InvalidRequestError(f"key {key!r}: {RESERVED} is the store's own")
        if any(len(part.encode()) > _LONGEST_COMPONENT for part in parts):
            raise InvalidRequestError(
                f"key {key!r}: a component is longer than {_LONGEST_COMPONENT} bytes"
            )

    @contextmanager
    def _found(self, operation: str, key: str) -> Iterator[None]:
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
