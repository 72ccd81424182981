"""Find the state of an export in a table's commits."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice, pairwise
from typing import Final

from sidetier.pipeline.export.errors import OtherExportError
from sidetier.pipeline.export.tables.errors import BrokenProgressError, LostProgressError
from sidetier.pipeline.export.tables.progress import (
    VERSION_KEY,
    WHOLE_VERSION,
    Changes,
    Offsets,
    Progress,
    Tail,
)
from sidetier.pipeline.export.tail.logs import require_same_topic
from sidetier.segments.isolation import IsolationLevel

_CHECKED: Final = 5
"""Number of commits that are compared. A writer that comes back late is one or two commits
behind.
"""


def last_progress(
    newest_first: Iterable[Progress | Changes | None],
    kept: Callable[[str], Progress | None] = lambda _commit: None,
) -> Progress | None:
    """Return the state after the last commit of an export; None if there is none.

    If that commit has only changes, older commits are read up to the one with the whole state. Its
    age is stored in the last commit.

    Args:
        newest_first: the table's commits; None for commits of others.
        kept: returns the state of a commit by its name, if it was kept although the commits behind
            it are gone.

    Raises:
        BrokenProgressError: the last commits do not follow each other.
        LostProgressError: the commit with the whole state does not exist any more.
    """
    ours: Iterator[Progress | Changes] = (
        progress for progress in newest_first if progress is not None
    )
    last = list(islice(ours, _CHECKED))
    for later, earlier in pairwise(last):
        _require_follows(later, earlier)
    if not last:
        return None
    newest = last[0]
    if isinstance(newest, Progress):
        return newest
    for progress in islice(chain(last, ours), 1, newest.age + 1):
        if isinstance(progress, Progress) and progress.commit == newest.whole_commit:
            return newest.on(progress)
    whole = kept(newest.whole_commit)
    if whole is not None:
        return newest.on(whole)
    raise LostProgressError(
        f"the last commit of the export, {newest.commit}, says what has changed since the commit "
        f"{newest.whole_commit}, which has the whole state, and is not in the table's history any "
        "more: it has expired. Roll the table back to a commit that has the whole state "
        f"({VERSION_KEY} is {WHOLE_VERSION}), or name startingOffsets. --whole-state-every 1 "
        "writes the whole state with each commit"
    )


def _require_follows(later: Progress | Changes, earlier: Progress | Changes) -> None:
    if isinstance(later, Changes) or later.previous is not None:
        follows = later.previous == earlier.commit
    else:  # written by an earlier version of Sidetier, as is the commit before it
        follows = isinstance(earlier, Progress) and dict(later.since) == dict(earlier.offsets)
    if follows:
        return
    raise BrokenProgressError(
        f"the commit {later.commit} does not begin where the one before it, {earlier.commit}, "
        "ended: two exports wrote to this table at once, and it holds records twice. Restore the "
        "table to a commit before both, and run the export again"
    )


def require_same(progress: Progress, cluster: str, isolation: IsolationLevel, table: str) -> None:
    """Check that the table belongs to an export of the same cluster and isolation level.

    Raises:
        OtherExportError: it does not.
    """
    if progress.cluster != cluster:
        raise OtherExportError(
            f"{table} holds records of the cluster {progress.cluster!r}, not of {cluster!r}: "
            "offsets of two clusters do not go into one table"
        )
    if progress.isolation is not isolation:
        raise OtherExportError(
            f"{table} was made with kafka.isolation.level {progress.isolation}, not {isolation}"
        )


def require_same_topics(before: Tail, now: Mapping[str, str], table: str) -> None:
    """Check that topics were not recreated since the last commit.

    Raises:
        OtherTopicError: a topic has another id now.
    """
    for topic, known in before.topic_ids.items():
        require_same_topic(topic, known, now.get(topic), table)


def is_at(read: Callable[[], Progress | None], since: Offsets) -> bool:
    """Return whether the table's offsets are those at which a commit starts.

    A run that ignores lost offsets of the table starts without any. So lost offsets match an empty
    `since`.

    Raises:
        LostProgressError: the offsets are lost, and `since` is not empty.
    """
    try:
        held = read()
    except LostProgressError:
        if since:
            raise
        return True
    return (held.offsets if held else {}) == since
