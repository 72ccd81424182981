"""How a version of an object comes and goes on HDFS, and what a kill leaves.

::

    <root>/<key>                                          the object's bytes
    <root>/_sidetier-store/new/<nonce>                    what is being written
    <root>/_sidetier-store/meta/<xx>/<hash>/<etag>.json   metadata and checksum of a version
    <root>/_sidetier-store/swaps/<hash>-<etag>/           how a version is replaced or deleted

hdfs-native offers no extended attributes, and a Parquet file with a trailer would not end with its
footer. So metadata is in a file of its own, the record, named by the SHA-256 of the key and by the
etag. The etag is the size and the modification time of the object's file, which a rename keeps. The
record is created before the version is published, so that both become visible in one step. Only one
version can have an etag, since its record is created without overwrite: the writer of another
version takes a time that is a millisecond later. The time is that of the NameNode, and later than
that of the version which is replaced, also when the NameNode's clock was set back.

An object is created by a rename of `new/<nonce>` to the key without overwrite, which the NameNode
decides. HDFS has no rename that depends on the version of its target, so a version is replaced in
six steps:

1. The directory `swaps/<hash>-<etag>/<nonce>` is made, named by the etag to be replaced.
2. The key is looked at: it still has that etag, else the write is refused.
3. `new/<nonce>` is moved to `swaps/<hash>-<etag>/<nonce>/v`.
4. `swaps/<hash>-<etag>/<nonce>` is renamed to `swaps/<hash>-<etag>/next` without overwrite. Of
   several writers one succeeds; only what it has written can replace this etag.
5. `next/v` is renamed over the key. `next` stays, so that no other writer can take its place.
6. `swaps/<hash>-<etag>` is deleted with all that other writers have there, then the old record.

A slow writer cannot replace a later version. Its directory is there from step 1 to step 4, or
step 4 fails. Had another writer completed a swap of that etag in between, `next` would be taken, or
`swaps/<hash>-<etag>` would be deleted, with the slow writer's directory. Step 5 moves `v`, which is
there once: a second rename fails.

A kill before step 4 leaves files that are never read. A kill after step 4 leaves the old version to
be seen, and the claim. The next writer that wants to replace or delete that version finds the
claim, carries out steps 5 and 6, and compares its own condition with the new version. A kill after
step 5 leaves an empty directory.

A delete is the same with a directory `next/d` in place of the file `next/v`. Its step 5 moves the
key's file to `next/d/gone`, which exists at most once, and which step 6 deletes.

All this holds between writers that use this module. Other programs that change the files do not
take part.
"""

from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from sidetier.segments.errors import StorageError, StoreUnavailableError
from sidetier.storage.conditions import check_condition
from sidetier.storage.hdfs_client import HdfsClient, HdfsFile
from sidetier.storage.local_records import Identity, Record, decode, encode, pick, undescribed
from sidetier.storage.port import Condition

if TYPE_CHECKING:
    from hdfs_native import AsyncFileWriter

RESERVED: Final = "_sidetier-store"
_LOOKS: Final = 100
_MS: Final = 1_000_000
"""Nanoseconds of a millisecond: HDFS keeps times in ms."""


class Versions:
    """The versions of the objects below a root.

    Methods raise StorageError. A transient error means that the step may have been carried out.
    """

    def __init__(self, client: HdfsClient, root: str) -> None:
        self._client = client
        self._root = root
        self._own = f"{root}/{RESERVED}"

    def path(self, key: str) -> str:
        """Where the object lies."""
        return f"{self._root}/{key}"

    def temporary(self) -> str:
        """A path for what is being written."""
        return f"{self._own}/new/{uuid4().hex}"

    def identity(self, key: str) -> Identity | None:
        """Which version is there now; None where there is none."""
        return self._client.identity(self.path(key))

    def record(self, key: str) -> Record | None:
        """What is known of the version that is there now; None where there is none."""
        for _ in range(_LOOKS):
            identity = self.identity(key)
            if identity is None:
                return None
            found = self._stored_record(key, identity)
            if found is not None:
                return found
            if self.identity(key) == identity:
                return undescribed(identity)
        raise StoreUnavailableError(f"head {key}: it is overwritten faster than it can be read")

    def open(self, key: str) -> tuple[HdfsFile, Identity]:
        """The file that is there now, open for reading.

        Raises:
            FileNotFoundError: there is none.
        """
        for _ in range(_LOOKS):
            identity = self.identity(key)
            if identity is None:
                raise FileNotFoundError(self.path(key))
            with suppress(FileNotFoundError):
                opened = self._client.open(self.path(key))
                # hdfs-native does not tell which file it has opened.
                if self.identity(key) == identity:
                    return opened, identity
        raise StoreUnavailableError(f"get {key}: it is overwritten faster than it can be read")

    def close(
        self,
        key: str,
        writer: "AsyncFileWriter",
        temporary: str,
        described: Record,
    ) -> Record:
        """Close the temporary file and store its record.

        Args:
            key: Of the object.
            writer: Of the temporary file, with all its bytes.
            temporary: Its path.
            described: Size, metadata and checksum; etag and time are chosen here.

        Returns:
            The record as it is stored.
        """
        opened, present = self._client.identity(temporary), self.identity(key)
        if opened is None:
            raise StoreUnavailableError(f"put {key}: {temporary} is gone")
        # The time at which the file was created: until it is closed, it has no other.
        wanted = _dated(described, max(opened.modified_ns, _later(present)))
        path = self._record_path(key, wanted.etag)
        if not self._client.close_and_write(temporary, writer, path, encode(key, (wanted,))):
            return self._describe(key, temporary, _dated(wanted, wanted.identity.modified_ns + _MS))
        self._client.set_modified(temporary, wanted.identity.modified_ms)
        return wanted

    def publish(self, key: str, temporary: str, record: Record, condition: Condition | None) -> str:
        """Make the closed temporary file the key's object, if the condition holds.

        Returns:
            The etag.

        Raises:
            PreconditionFailedError: the condition does not hold; nothing is published.
        """
        try:
            for _ in range(_LOOKS):
                present = self.identity(key)
                check_condition(key, condition, None if present is None else etag_of(present))
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
                    # Deleted by another writer in step 6. If the condition still holds, send again.
                    check_condition(key, condition, self._etag(key))
                    raise StoreUnavailableError(f"put {key}: another writer was faster")
        except StorageError as error:
            if not error.retry:
                self._forget(key, record.etag)
            raise
        raise StoreUnavailableError(f"put {key}: other writers were faster {_LOOKS} times")

    def remove(self, key: str, condition: Condition | None) -> None:
        """Remove the object, if the condition holds or there is none."""
        for _ in range(_LOOKS):
            present = self.identity(key)
            if present is None:
                return
            check_condition(key, condition, etag_of(present))
            slot, mine = self._slot(key, present)
            self._client.make_directory(f"{mine}/d")
            if self.identity(key) == present and self._claim(mine, slot):
                self._complete(key, slot, present)
                self._remove_empty_parents(key)
                return
            self._client.delete(mine, recursive=True)
            self._delete_if_empty(slot)
            self._help(key, slot, present)
        raise StoreUnavailableError(f"delete {key}: other writers were faster {_LOOKS} times")

    def _create(self, key: str, temporary: str) -> bool:
        try:
            self._client.rename_to_new_place(temporary, self.path(key))
        except FileExistsError:
            return False
        except FileNotFoundError as error:
            # The parent was removed as empty, by a delete, after it was made.
            raise StoreUnavailableError(f"put {key}: {error}") from error
        return True

    def _swap(self, key: str, temporary: str, present: Identity) -> bool:
        slot, mine = self._slot(key, present)
        self._client.make_directory(mine)
        if self.identity(key) != present:
            self._client.delete(mine, recursive=True)
            self._delete_if_empty(slot)
            return False
        try:
            self._client.rename(temporary, f"{mine}/v")
        except FileNotFoundError:
            return False  # the slot is gone: the version was replaced
        if self._claim(mine, slot):
            self._complete(key, slot, present)
            return True
        with suppress(FileNotFoundError):
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
        """Carry out what another writer has claimed: it may be dead."""
        if self._client.exists(f"{slot}/next"):
            self._complete(key, slot, present)

    def _complete(self, key: str, slot: str, replaced: Identity) -> None:
        """Steps 5 and 6; another writer may do the same at the same time."""
        try:
            self._client.rename(f"{slot}/next/v", self.path(key), overwrite=True)
        except FileNotFoundError:
            if self._client.exists(f"{slot}/next/d"):
                with suppress(FileNotFoundError, FileExistsError):
                    self._client.rename(self.path(key), f"{slot}/next/d/gone")
        self._client.delete(slot, recursive=True)
        self._forget(key, etag_of(replaced))

    def _describe(self, key: str, temporary: str, record: Record) -> Record:
        """Store the record of the closed temporary file, with the first time that is free."""
        for _ in range(_LOOKS):
            with suppress(FileExistsError):
                self._client.write_small(
                    self._record_path(key, record.etag), encode(key, (record,))
                )
                self._client.set_modified(temporary, record.identity.modified_ms)
                return record
            record = _dated(record, record.identity.modified_ns + _MS)
        raise StoreUnavailableError(f"put {key}: {_LOOKS} other versions have the same time")

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
        """Remove a record that describes nothing any more. One that stays is never read."""
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
    """The earliest time of a version that replaces this one, in ns since 1970."""
    return 0 if present is None else present.modified_ns + _MS


def _dated(record: Record, modified_ns: int) -> Record:
    identity = replace(record.identity, modified_ns=modified_ns)
    return replace(record, identity=identity, etag=etag_of(identity))


def etag_of(identity: Identity) -> str:
    """The etag of the version with this identity."""
    return undescribed(identity).etag


def _hash(key: str) -> str:
    return sha256(key.encode()).hexdigest()
