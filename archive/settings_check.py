"""Find an archive that is stored under another number of prefix entropy bits."""

import threading
from typing import Final

from sidetier.archive.access import ArchiveAccess
from sidetier.archive.errors import WrongPlaceError
from sidetier.archive.objects.layout import check_note, read_note
from sidetier.segments.errors import ConfigurationError, MalformedObjectError, ObjectNotFoundError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import RemoteStorage

_MAX_BITS: Final = 16
"""Highest number of entropy bits that is tried. The first is 0."""
_MAX_PARTITIONS: Final = 8
"""Maximum number of partitions without an archive that are checked. With wrong bits, every
partition has none.
"""


class SettingsCheck:
    """Checks each store and each partition once. Thread-safe.

    A sidecar writes `layout.json` with its entropy bits. Pinterest's uploader does not: then the
    check looks for `offset.wm` under other numbers of bits, with one request for each.
    """

    def __init__(self, archive: ArchiveAccess) -> None:
        self._archive = archive
        self._guard = threading.Lock()
        self._noted: set[str] = set()
        self._tried: set[TopicPartition] = set()

    def check(self, tp: TopicPartition) -> None:
        """Check a partition that has no `offset.wm`.

        Raises:
            WrongPlaceError: The partition is stored under another number of entropy bits.
        """
        store, url = self._archive.store(tp.topic), self._archive.url(tp.topic)
        with self._guard:
            self._check_note(tp, store, url)
            self._try_others(tp, store, url)

    def _check_note(self, tp: TopicPartition, store: RemoteStorage, url: str) -> None:
        if url in self._noted:
            return
        layout = self._archive.layout
        try:
            note = read_note(store, layout)
            if note is not None:
                check_note(note, layout, None)
        except (ConfigurationError, MalformedObjectError) as error:
            raise WrongPlaceError(f"{self._looked(tp, url)}: {error}") from error
        self._noted.add(url)

    def _try_others(self, tp: TopicPartition, store: RemoteStorage, url: str) -> None:
        if tp in self._tried or len(self._tried) >= _MAX_PARTITIONS:
            return
        layout = self._archive.layout
        for bits in range(_MAX_BITS + 1):
            key = ArchiveLayout(layout.cluster, bits).watermark_key(tp)
            if bits == max(layout.bits, 0) or not _is_there(store, key):
                continue
            raise WrongPlaceError(
                f"{self._looked(tp, url)}, but {url}/{key} exists: the archive has {bits} prefix "
                f"entropy bits, but storage.prefix_entropy_bits is {layout.bits}; set it to {bits}"
            )
        # After the requests: a store that fails leaves the partition to be tried again.
        self._tried.add(tp)

    def _looked(self, tp: TopicPartition, url: str) -> str:
        return f"nothing of {tp} is stored at {url}/{self._archive.layout.partition_prefix(tp)}"


def _is_there(store: RemoteStorage, key: str) -> bool:
    try:
        store.head_object(key)
    except ObjectNotFoundError:
        return False
    return True
