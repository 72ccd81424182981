"""Each rule by which an archive and a live cluster are joined is broken in turn: the simulation
must detect it.

`test_live_side` checks the rules one by one that clients seldom notice: after a wrong order of two
questions, or an answer that is too old, a later question gives the right answer.
"""

# ruff: noqa: ANN401 - a mutant passes on what it gets
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from kio.schema.errors import ErrorCode

from sidetier.endpoint import fetch, offsets
from sidetier.endpoint.live import chunks, joined, side, topics
from sidetier.endpoint.live.side import Age, Side, Sides
from tests.property.endpoint.test_live_log import EXAMPLES, LiveLog

real_choose, real_find = side.choose, side.find
real_archived = joined.JoinedPartition.archived


def _away_is_gone(offset: Any, live: Any, archived: Any, below: Any, **more: Any) -> Side:
    """Mutant: what an absent leader may have is out of range."""
    chosen = real_choose(offset, live, archived, below, **more)
    return Side.NEITHER if chosen is Side.UNKNOWN else chosen


def _leader_has_all(offset: Any, live: Any, archived: Any, below: Any, **more: Any) -> Side:
    """Mutant: what is below the live log start is read from there on."""
    chosen = real_choose(offset, live, archived, below, **more)
    return Side.LIVE if live is not None else chosen


def _as_is_known(
    offset: Any, live: Any, archived: Any, below: Any, *, refused: bool = False
) -> Any:
    """Mutant: NEITHER is final by what is known."""
    known, stored = live(Age.RECENT), archived(Age.RECENT)
    return Sides(side.choose(offset, known, stored, below, refused=refused), known, stored)


def _archive_is_recent(offset: Any, live: Any, archived: Any, below: Any, **more: Any) -> Sides:
    """Mutant: the archive is not read again before NEITHER."""
    return real_find(
        offset, live, lambda age: archived(Age.RECENT if age is Age.NOW else age), below, **more
    )


def _without_failure(self: Any, age: Age) -> Any:
    """Mutant: an archive that cannot be read has nothing."""
    found = real_archived(self, age)
    self.failure = None
    return found


def _if_listed(self: Any, age: Age) -> Any:
    """Mutant: an archive is only read after the store was listed."""
    return real_archived(self, Age.RECENT if age is Age.NOW else age)


def _gone_at_once(catalog: Any, partition: Any, topic_id: Any = None) -> Any:
    """Mutant: a topic that no broker has shown is the archive's alone."""
    live = catalog.live
    if partition.tp.topic not in live.topics.topics:
        return None
    return joined.JoinedPartition(live, catalog, partition, topic_id)


def _nothing(*_: Any) -> None:
    """Mutant: leave the step out."""


QUICK: list[tuple[object, str, object]] = [
    (side, "choose", _away_is_gone),
    (side, "choose", _leader_has_all),
]
SLOW: list[tuple[object, str, object]] = [
    (fetch, "find", _as_is_known),
    (fetch, "find", _archive_is_recent),
    (joined.JoinedPartition, "archived", _without_failure),
    (joined.JoinedPartition, "archived", _if_listed),
    (joined.JoinedPartition, "of", staticmethod(_gone_at_once)),
    (joined.JoinedPartition, "_is_of_live_topic", lambda *_: True),
    (joined.JoinedPartition, "is_other_topic", lambda _: False),
    (chunks.ChunkCache, "drop", _nothing),
    (topics.LiveTopics, "is_same", lambda *_: True),
    (offsets.OffsetAnswers, "_listed", lambda *_: offsets.ListedOffset(ErrorCode.none)),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", QUICK + SLOW if EXAMPLES else QUICK)
def test_a_broken_rule_shows(mutant: tuple[Any, str, Any]) -> None:
    place, name, broken = mutant
    with patch.object(place, name, broken), pytest.raises(AssertionError):
        run_state_machine_as_test(
            LiveLog,
            settings=settings(
                max_examples=max(EXAMPLES, 200),
                stateful_step_count=40,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
