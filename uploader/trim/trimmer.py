"""One pass of local retention, in three steps: survey, verify, delete.

- `survey` reads the directories, and asks the broker for topic configurations and, if records can
  be deleted, for the committed offsets of consumer groups and the members of those behind.
- `verify` asks the store whether it has the records of some partitions.
- `delete` deletes these records by one request to the broker.

The daemon and `sidetier trim` use the same steps. Between two steps the daemon drops the partitions
that have changed.

What a kill leaves: before the broker has the request, nothing. Afterwards, the broker deletes the
records all the same; they are archived. The next pass reads the directories again.
"""

import os
import re
import threading
from collections import OrderedDict
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

from sidetier.config.problems import first_of
from sidetier.config.retention import LocalRetentionConfig
from sidetier.leadership.port import (
    CommittedOffsets,
    RecordDeleter,
    RecordDeletion,
    TopicConfig,
    TopicConfigSource,
)
from sidetier.segments.cluster_state import GroupMember
from sidetier.segments.errors import BrokerError, LeadershipError, SidetierError
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.offsets import LeaderEpoch, Offset, TopicPartition
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.trim.archive_check import (
    ArchiveCheck,
    LedPartition,
    VerifiedLog,
    VerifiedLogs,
)
from sidetier.uploader.trim.decision import (
    Held,
    Hindrance,
    Trim,
    bounded_by_groups,
    bounded_by_transactions,
    decide,
    topic_hindrance,
    topic_id_hindrance,
    within_rate,
)
from sidetier.uploader.trim.groups_behind import GroupBehind, groups_behind
from sidetier.uploader.trim.local_log import local_segments, log_start_offsets, stable_end

AT_ONCE: Final = 500
"""Partitions of one DeleteRecords request. Their archives are verified right before it."""
CHECK_THREADS: Final = 32
"""Concurrent checks of archives: each waits for the store most of the time. A check makes
about five requests. If each takes 30 ms, 2,000 partitions take 9 s.
"""
_FRESH_SECONDS: Final = 60.0
"""Age of a check beyond which it is made once more before records are deleted."""
_MAX_VERIFIED: Final = 100_000
"""`.log` objects that are remembered. Those of a finished trim are not needed again."""
_OFFSETS: Final = "committed offsets of consumer groups"
_NAME: Final = re.compile(r"(?:[A-Za-z0-9_-]|\\\.)+")
"""A pattern that matches one group only."""


class ArchivePlace(Protocol):
    """Where a topic is archived: a store, and the layout of its keys."""

    @property
    def store(self) -> RemoteStorage:
        """The store."""
        ...

    @property
    def layout(self) -> ArchiveLayout:
        """The keys on it."""
        ...


@dataclass(frozen=True, slots=True)
class Survey:
    """The decisions of a pass, before the archives are verified.

    Attributes:
        trims: One for each partition with records beyond local retention.
        groups_behind: The consumer groups that would fall behind the new log starts.
        members: The members of these groups; without groups whose members cannot be read.
        groups_problems: Why groups are not known, or their committed offsets could not be read.
            Empty if nothing should be deleted.
    """

    trims: tuple[Trim, ...] = ()
    groups_behind: tuple[GroupBehind, ...] = ()
    members: Mapping[str, tuple[GroupMember, ...]] = field(default_factory=dict)
    groups_problems: tuple[str, ...] = ()


class _Groups(NamedTuple):
    """Committed offsets of consumer groups.

    Attributes:
        problems: Why groups or their offsets are not known.
        protected_unknown: The problem, if one of the groups may be protected.
    """

    offsets: CommittedOffsets
    problems: tuple[str, ...] = ()
    protected_unknown: str | None = None


class LastVerifiedLogs(MutableMapping[tuple[str, LeaderEpoch], VerifiedLog]):
    """The `.log` objects that were checked last, in bounded memory. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: OrderedDict[tuple[str, LeaderEpoch], VerifiedLog] = OrderedDict()

    def __getitem__(self, key: tuple[str, LeaderEpoch]) -> VerifiedLog:
        return self._logs[key]

    def __setitem__(self, key: tuple[str, LeaderEpoch], log: VerifiedLog) -> None:
        with self._lock:
            self._logs[key] = log
            while len(self._logs) > _MAX_VERIFIED:
                self._logs.popitem(last=False)

    def __delitem__(self, key: tuple[str, LeaderEpoch]) -> None:
        with self._lock:
            del self._logs[key]

    def __iter__(self) -> Iterator[tuple[str, LeaderEpoch]]:
        return iter(tuple(self._logs))

    def __len__(self) -> int:
        return len(self._logs)


@dataclass(frozen=True, slots=True)
class Trimmer:
    """Makes the steps of a pass. Only one thread at a time calls it.

    Attributes:
        local: The settings.
        deleter: Deletes records, and reads consumer groups.
        topic_configs: Reads topic configurations.
        places: Where each topic is archived.
        wall: Seconds since 1970.
        threads: Concurrent checks of archives.
        all_groups: Whether to read the offsets of all consumer groups, to list those that would
            fall behind. Otherwise only protected groups are read: with many brokers and groups the
            requests of all sidecars would be a load for the coordinators.
        verified: The `.log` objects that were verified.
        before_read: Called with the number of bytes before objects are read. Its errors end the
            check.
    """

    local: LocalRetentionConfig
    deleter: RecordDeleter
    topic_configs: TopicConfigSource
    places: Callable[[str], ArchivePlace]
    wall: Callable[[], float]
    threads: int = CHECK_THREADS
    all_groups: bool = False
    verified: VerifiedLogs = field(default_factory=LastVerifiedLogs)
    before_read: Callable[[int], None] = lambda _: None

    def survey(self, led: Sequence[LedPartition]) -> Survey:
        """Decide how far to trim each log, as far as no request to the store is needed.

        Args:
            led: The partitions with local retention that the broker leads.
        """
        configs = self._configs({partition.topic_partition.topic for partition in led})
        log_starts = log_start_offsets({os.path.dirname(one.directory) for one in led})
        decided = (self._decide(one, configs, log_starts) for one in led)
        trims = [trim for trim in decided if trim is not None]
        if not any(trim.size for trim in trims):
            return Survey(tuple(trims))
        groups = self._groups()
        committed, problems, unknown = groups.offsets, groups.problems, groups.protected_unknown
        if unknown is not None:
            held = Held(Hindrance.GROUPS_UNKNOWN, unknown)
            return Survey(
                tuple(trim.none(held) if trim.size else trim for trim in trims),
                groups_problems=problems,
            )
        protected = {g: offsets for g, offsets in committed.items() if self.local.protects(g)}
        trims = [
            bounded_by_groups(trim, _committed_in(trim.topic_partition, protected))
            for trim in trims
        ]
        trims = within_rate(trims, self._budget())
        log_starts = {trim.topic_partition: trim.end for trim in trims if trim.end > trim.start}
        behind = tuple(groups_behind(log_starts, committed))
        members = self._members({entry.group for entry in behind})
        return Survey(tuple(trims), behind, members, problems)

    def _budget(self) -> int | None:
        """Return the bytes that one pass may delete; None for no limit."""
        rate = self.local.max_bytes_per_second
        return None if rate is None else int(rate * self.local.interval)

    def _configs(self, topics: Iterable[str]) -> Mapping[str, TopicConfig | None]:
        # Asked anew in each pass: a change of cleanup.policy must count at once.
        with suppress(LeadershipError):
            wanted = sorted(topics)
            return self.topic_configs.topic_configs(wanted) if wanted else {}
        return {}

    def _decide(
        self,
        led: LedPartition,
        configs: Mapping[str, TopicConfig | None],
        log_starts: Mapping[TopicPartition, Offset],
    ) -> Trim | None:
        tp = led.topic_partition
        held = (
            topic_hindrance(tp.topic, configs.get(tp.topic))
            or topic_id_hindrance(led.topic_id)
            or led.held
        )
        try:
            segments = local_segments(led.directory, led.trimmed_to)
        except OSError:  # the broker rolls or deletes segments: the next pass reads it again
            return None
        trim = decide(tp, segments, led.archived_to, held, self.local, self.wall())
        if trim is not None and trim.size and led.archived_to is not None:
            stable = stable_end(led.directory, segments, led.archived_to)
            trim = bounded_by_transactions(trim, stable)
        return None if trim is None else replace(trim, log_start=log_starts.get(tp, trim.start))

    def _groups(self) -> _Groups:
        if not (self.all_groups or self.local.protect_groups):
            return _Groups({})
        # ListGroups silently leaves out groups that the principal may not describe. For a group
        # that is named in full, that must be an error.
        names = [
            pattern.replace("\\.", ".")
            for pattern in self.local.protect_groups
            if _NAME.fullmatch(pattern)
        ]
        wanted = None if self.all_groups else self.local.protects
        try:
            read = self.deleter.committed_offsets(names, wanted)
        except BrokerError as error:
            text = f"{_OFFSETS}: {error}"
            return _Groups({}, (text,), text if self.local.protect_groups else None)
        problems = () if read.incomplete is None else (f"consumer groups: {read.incomplete}",)
        if read.unread:
            problems = (_unread_text(read.unread), *problems)
        protected = {g: why for g, why in read.unread.items() if self.local.protects(g)}
        return _Groups(read.offsets, problems, _unread_text(protected) if protected else None)

    def _members(self, groups: Collection[str]) -> Mapping[str, tuple[GroupMember, ...]]:
        if groups:
            with suppress(BrokerError):
                return self.deleter.members(groups)
        return {}

    def verify(
        self, wanted: Sequence[tuple[LedPartition, Trim]]
    ) -> list[tuple[LedPartition, Trim]]:
        """Return the trims, each shortened to the records that the store is proven to have."""
        began = self.wall()
        verified = self._verify(wanted)
        if self.wall() - began <= _FRESH_SECONDS:
            return verified
        # The bytes of large objects can take hours, and the first partitions may have lost objects
        # meanwhile. The objects that were verified are only listed again.
        return self._verify(verified)

    def _verify(
        self, wanted: Sequence[tuple[LedPartition, Trim]]
    ) -> list[tuple[LedPartition, Trim]]:
        if len(wanted) == 1 or self.threads == 1:
            return [(led, self._bound(led, trim)) for led, trim in wanted]
        with ThreadPoolExecutor(self.threads, "archive-check") as helpers:
            bounded = helpers.map(lambda one: self._bound(*one), wanted)
            return [(led, trim) for (led, _), trim in zip(wanted, bounded, strict=True)]

    def _bound(self, led: LedPartition, trim: Trim) -> Trim:
        if trim.end == trim.start:
            return trim
        try:
            self.before_read(0)
            place = self.places(led.topic_partition.topic)
            check = ArchiveCheck(place.store, place.layout, self.verified, self.before_read)
            return check.bound(led, trim)
        except (SidetierError, OSError) as error:
            return trim.none(Held(Hindrance.REQUEST_FAILED, str(error)))
        except Exception as error:  # noqa: BLE001 - the other partitions are checked all the same
            return trim.none(Held(Hindrance.REQUEST_FAILED, f"{type(error).__name__}: {error}"))

    def delete(self, verified: Sequence[tuple[LedPartition, Trim]]) -> list[Trim]:
        """Delete the records of verified trims. Returns the trims that the broker has made.

        A trim that the broker has refused frees nothing, and has the reason.
        """
        deletions = {
            trim.topic_partition: RecordDeletion(trim.end, led.leader_epoch, led.topic_id)
            for led, trim in verified
            if trim.end > trim.start
        }
        answers: Mapping[TopicPartition, Offset | SidetierError] = {}
        problem = "the broker has not answered about the partition"
        try:
            answers = self.deleter.delete_records(deletions) if deletions else {}
        except SidetierError as error:
            problem = str(error)
        return [
            trim
            if trim.topic_partition not in deletions
            else _done(trim, answers.get(trim.topic_partition), problem)
            for _, trim in verified
        ]


def _done(trim: Trim, answer: Offset | SidetierError | None, problem: str) -> Trim:
    if answer is None:
        return trim.none(Held(Hindrance.REQUEST_FAILED, problem))
    if isinstance(answer, SidetierError):
        return trim.none(Held(Hindrance.LEADERSHIP_UNCONFIRMED, str(answer)))
    return trim


def _unread_text(unread: Mapping[str, str]) -> str:
    names = sorted(unread)
    return f"{_OFFSETS} {first_of(names)}: {unread[names[0]]}"


def _committed_in(tp: TopicPartition, committed: CommittedOffsets) -> Iterator[tuple[str, Offset]]:
    for group, offsets in committed.items():
        if tp in offsets:
            yield group, offsets[tp]
