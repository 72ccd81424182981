"""Which of a table's commits says where the next run begins."""

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
"""So many commits are compared: a writer that comes back from the dead is late by one or two."""


def last_progress(
    newest_first: Iterable[Progress | Changes | None],
    kept: Callable[[str], Progress | None] = lambda _commit: None,
) -> Progress | None:
    """The state after the last commit of ours, of a table's commits; None stands for those of
    others. Where the last one says only its changes, older ones are read up to the one with the
    whole state: as many as it says. `kept` gives that one by its name where it was kept, and those
    behind it are not there any more.

    Raises:
        BrokenProgressError: the last commits do not follow each other.
        LostProgressError: the commit with the whole state is not there any more.
    """
    ours: Iterator[Progress | Changes] = (one for one in newest_first if one is not None)
    last = list(islice(ours, _CHECKED))
    for later, earlier in pairwise(last):
        _require_follows(later, earlier)
    if not last:
        return None
    newest = last[0]
    if isinstance(newest, Progress):
        return newest
    for one in islice(chain(last, ours), 1, newest.age + 1):
        if isinstance(one, Progress) and one.commit == newest.whole_commit:
            return newest.on(one)
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
    else:  # of an earlier version of Sidetier, as then is the one before it
        follows = isinstance(earlier, Progress) and dict(later.since) == dict(earlier.offsets)
    if follows:
        return
    raise BrokenProgressError(
        f"the commit {later.commit} does not begin where the one before it, {earlier.commit}, "
        "ended: two exports wrote to this table at once, and it holds records twice. Restore the "
        "table to a commit before both, and run the export again"
    )


def require_same(progress: Progress, cluster: str, isolation: IsolationLevel, table: str) -> None:
    """Refuse to go on with what another cluster's, or another kind of, export has begun.

    Raises:
        OtherExportError: see there.
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
    """Refuse to go on with another topic of the same name; raises OtherTopicError."""
    for topic, known in before.topic_ids.items():
        require_same_topic(topic, known, now.get(topic), table)


def is_at(read: Callable[[], Progress | None], since: Offsets) -> bool:
    """Whether a table says what a commit begins with.

    A run that was told to begin without the table's offsets begins with none, and finds none.

    Raises:
        LostProgressError: the offsets are not to be found, and the commit begins with some.
    """
    try:
        held = read()
    except LostProgressError:
        if since:
            raise
        return True
    return (held.offsets if held else {}) == since
