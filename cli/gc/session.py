"""Find and delete what is past its retention, orphans, and unfinished uploads of a cluster."""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, groupby
from threading import Event
from typing import TYPE_CHECKING, Final

from sidetier.archive.access import ArchiveAccess, require_fencing
from sidetier.archive.gc.collector import PartitionCollector
from sidetier.archive.gc.listing import AbsentArchiveError, NotCollectableError
from sidetier.archive.gc.orphans import (
    NEVER_DELETED,
    Orphan,
    OrphanKind,
    delete_orphan,
    find_orphans,
    find_quarantined,
)
from sidetier.archive.gc.retention import Need, Retention
from sidetier.archive.objects.layout import check_note, read_note
from sidetier.archive.topics import cluster_prefixes, stored_partitions
from sidetier.cli.gc.needs import UnknownProgressError, check_rule, read_needs
from sidetier.cli.gc.results import GcResult, GcRow, OrphansResult, UploadsResult
from sidetier.cli.stores import layout_of
from sidetier.segments.errors import ConfigurationError, SidetierError
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.port import RemoteStorage, UnfinishedUpload
from sidetier.storage.retrying import multipart_uploads
from sidetier.storage.token_bucket import TokenBucket

if TYPE_CHECKING:
    from sidetier.config.model import Config
    from sidetier.config.retention import StoreRetention

AT_ONCE: Final = 16
"""Maximum number of concurrent requests."""


class GcSession:
    """One run of `sidetier gc`.

    Args:
        config: The configuration.
        stores: All configured stores.
        pool: Runs the requests of several partitions at the same time.
        deletes: Runs conditional deletes of these partitions. It is another pool, because threads
            of the first one wait for it.
        deletes_per_second: Maximum number of objects that are deleted in a second.
        topics: Only these topics; empty for all.
        now_ms: Returns the present time in ms since 1970.
    """

    def __init__(  # noqa: PLR0913 - the last two are optional
        self,
        config: "Config",
        stores: ArchiveAccess,
        pool: ThreadPoolExecutor,
        deletes: ThreadPoolExecutor,
        deletes_per_second: float,
        *,
        topics: Sequence[str] = (),
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._config = config
        self._stores = stores
        self._pool = pool
        self._deletes = deletes
        self._layout = layout_of(config)
        self._bucket = TokenBucket(deletes_per_second, time.monotonic)
        self._topics = tuple(topics)
        self._now_ms = now_ms
        self._stop = Event()

    def stop(self) -> None:
        """End waits, and delete nothing more."""
        self._stop.set()

    def check(self) -> None:
        """Check that the stores may be written to.

        Raises:
            ConfigurationError: A store belongs to another cluster, or has no conditional writes.
        """
        for endpoint, store in self._stores.by_endpoint.items():
            require_fencing(self._config.storage, store, endpoint.url)
            note = read_note(store, self._layout)
            if note is not None:
                check_note(note, self._layout, None)

    # -- retention ---------------------------------------------------------------------------------

    def retention(self, *, dry_run: bool) -> GcResult:
        """Delete what is past its retention; with `dry_run`, only show it.

        Raises:
            ConfigurationError: No rule applies, or a named topic has none, or the progress of a
                consumer cannot be read with this configuration. Nothing was deleted.
        """
        retained = self._retained()
        # Before anything is deleted: a wrong setting must not show only at the second topic.
        for topic in {tp.topic for tp in retained}:
            rule = self._config.retention.of_topic(topic)
            if rule is not None:
                check_rule(self._config, rule)
        rows = list(
            chain.from_iterable(
                self._topic(list(group), dry_run=dry_run)
                for _, group in groupby(retained, lambda tp: tp.topic)
            )
        )
        return GcResult(rows, dry_run, by_partition=bool(self._topics))

    def _retained(self) -> list[TopicPartition]:
        retention = self._config.retention
        if not retention.store:
            raise ConfigurationError(
                "retention.store is not set, so archives are kept for good: there is nothing to do"
            )
        for topic in self._topics:
            if retention.of_topic(topic) is None:
                raise ConfigurationError(
                    f"retention.store has no rule for topic {topic}: its archive is kept for good"
                )
        return [tp for tp in self._partitions() if retention.of_topic(tp.topic) is not None]

    def _topic(self, partitions: Sequence[TopicPartition], *, dry_run: bool) -> Iterable[GcRow]:
        rule = self._config.retention.of_topic(partitions[0].topic)
        if rule is None:
            return []
        try:
            needs = read_needs(self._config, self._stores, rule, partitions)
        except UnknownProgressError as error:
            # Also for the other partitions: a consumer that is set up wrongly reads all of them.
            return [
                GcRow(tp.topic, tp.partition, reason=str(error), blocked=True) for tp in partitions
            ]

        def row(tp: TopicPartition) -> GcRow | None:
            return self._partition(tp, rule, needs.get(tp, []), dry_run=dry_run)

        return [row for row in self._pool.map(row, partitions) if row is not None]

    def _partition(
        self, tp: TopicPartition, rule: "StoreRetention", needs: Sequence[Need], *, dry_run: bool
    ) -> GcRow | None:
        collector = PartitionCollector(
            self._stores.store(tp.topic),
            self._layout,
            tp,
            Retention(rule.age, rule.bytes),
            needs=needs,
            wait=self._wait,
            for_each=self._deletes.map,
            now_ms=self._now_ms,
        )
        try:
            done = collector.survey() if dry_run else collector.collect()
        except AbsentArchiveError:
            return None
        except NotCollectableError as error:
            return GcRow(*tp, reason=str(error), blocked=True)
        except SidetierError as error:
            return GcRow(*tp, problem=str(error))
        return GcRow(*tp, done.start, done.new_start, done.segments, done.size_bytes, done.reason)

    def _wait(self, objects: int) -> None:
        if self._stop.wait(self._bucket.reserve(objects)):
            raise SidetierError("interrupted; the next run deletes the rest")

    # -- orphans -----------------------------------------------------------------------------------

    def orphans(self, older_than: float, *, quarantined: bool, dry_run: bool) -> OrphansResult:
        """Delete orphans older than a number of seconds; with `dry_run`, only show them."""
        problems: list[str] = []

        def orphans_of(tp: TopicPartition) -> list[tuple[RemoteStorage, Orphan]]:
            store = self._stores.store(tp.topic)
            try:
                return [(store, orphan) for orphan in find_orphans(store, self._layout, tp)]
            except SidetierError as error:
                problems.append(f"{tp}: {error}")
                return []

        found = list(chain.from_iterable(self._pool.map(orphans_of, self._partitions())))
        for store in self._stores.by_endpoint.values():
            quarantined_objects = find_quarantined(store, self._layout, self._topics)
            found += [(store, orphan) for orphan in quarantined_objects]
        limit_ms = self._now_ms() - older_than * 1000

        kept = {
            orphan.row.key: reason
            for _, orphan in found
            if (reason := _reason_to_keep(orphan, limit_ms, quarantined=quarantined)) is not None
        }
        due = [(store, orphan) for store, orphan in found if orphan.row.key not in kept]

        def delete(entry: tuple[RemoteStorage, Orphan]) -> str | None:
            store, orphan = entry
            if not dry_run:
                self._wait(1)
                if not delete_orphan(store, orphan):
                    return None
            return orphan.row.key

        deleted = frozenset(key for key in self._pool.map(delete, due) if key is not None)
        return OrphansResult([orphan for _, orphan in found], deleted, dry_run, kept, problems)

    # -- unfinished uploads ------------------------------------------------------------------------

    def uploads(self, older_than: float, *, dry_run: bool) -> UploadsResult:
        """Abort uploads that were begun more than a number of seconds ago; see `orphans`."""
        found: list[UnfinishedUpload] = []
        aborted, not_applicable = set(), []
        limit_ms = self._now_ms() - older_than * 1000
        for endpoint, store in self._stores.by_endpoint.items():
            keeper = multipart_uploads(store)
            if keeper is None:
                not_applicable.append(endpoint.url)
                continue
            for upload in keeper.unfinished_uploads(""):
                if not self._is_ours(upload.key):
                    continue
                found.append(upload)
                if upload.started_ms < limit_ms:
                    if not dry_run:
                        self._wait(1)
                        keeper.abort_upload(upload)
                    aborted.add(upload.upload_id)
        return UploadsResult(found, frozenset(aborted), dry_run, not_applicable)

    def _is_ours(self, key: str) -> bool:
        """Return whether the key is of the configured cluster. Clusters may share a bucket."""
        parts = key.split("/")
        at = 1 if self._layout.bits > 0 or parts[0] == "_sidetier" else 0
        if len(parts) <= at + 1 or parts[at] != self._layout.cluster:
            return False
        directory = parts[at + 1].rpartition("-")[0]
        return not self._topics or directory in self._topics

    # -- partitions --------------------------------------------------------------------------------

    def _partitions(self) -> list[TopicPartition]:
        """List the stored partitions of the named topics, or of all, in order."""
        topics: Iterable[str | None] = self._topics or (None,)
        asked = [
            (store, prefix, topic)
            for store in self._stores.by_endpoint.values()
            for prefix in cluster_prefixes(store, self._layout)
            for topic in topics
        ]

        def listed(question: tuple[RemoteStorage, str, str | None]) -> list[TopicPartition]:
            store, prefix, topic = question
            return [
                tp
                for tp in stored_partitions(store, self._layout, prefix, topic)
                if self._stores.store(tp.topic) is store
            ]

        return sorted(chain.from_iterable(self._pool.map(listed, asked)))


def _reason_to_keep(orphan: Orphan, limit_ms: float, *, quarantined: bool) -> str | None:
    """Return why an orphan is not deleted; None if it is."""
    if orphan.kind in NEVER_DELETED:
        return "it may be the only copy of its records"
    if orphan.kind is OrphanKind.QUARANTINED and not quarantined:
        return "only --quarantined deletes it"
    return None if orphan.row.modified_ms < limit_ms else "younger than --older-than"
