"""The report of a run: how often each action happened, and which never did."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.end_to_end.chaos.run import Report
from tests.harness.ci import ExpiredWaitsError, TooLittleHappenedError, _was_too_slow
from tests.harness.damaged_logs import Damage

ENOUGH = Report(
    title="chaos seed 1, 180 s",
    seconds=180,
    directory=Path("/nowhere"),
    violations=(),
    events=(),
    counts={"KillBroker": 9, "FillDisk": 1},
    stored=1000,
    segments=50,
    expired=1,
    live=1000,
    damages={kind.name: 1 for kind in Damage},
    drawn=frozenset({"KillBroker", "FillDisk", "RestartEverything"}),
)


def test_summary_counts_each_action_and_names_those_that_never_happened() -> None:
    lost = replace(ENOUGH, by_elections=200, quarantined=180, by_deletions=90, retired=70)
    report = replace(lost, changed_logs=5)
    assert "FillDisk 1, KillBroker 9" in report.summary
    assert report.summary.endswith("drawn, but never happened: RestartEverything")
    assert "200 lost to unclean elections, 180 of them archived before" in report.summary
    assert "90 lost with deleted topics, 70 of them found in retired archives" in report.summary
    assert "readers came 5 times from a deleted topic into the one created again" in report.summary
    every = replace(report, drawn=frozenset(report.counts))
    assert every.summary.endswith("drawn, but never happened: nothing")


def test_short_run_is_valid_without_every_action() -> None:
    ENOUGH.check()


def test_long_run_is_invalid_if_one_action_never_happened() -> None:
    long = replace(ENOUGH, seconds=1800, counts={"KillBroker": 90, "FillDisk": 10})
    with pytest.raises(TooLittleHappenedError, match="too few RestartEverything, trims"):
        long.check()
    full = replace(long, drawn=frozenset(long.counts), trims=1, trims_held=1)
    full.check()
    for few in (replace(full, trims=0), replace(full, trims_held=0)):
        with pytest.raises(TooLittleHappenedError, match="too few trims"):
            few.check()


@pytest.mark.parametrize(
    ("few", "said"),
    [
        ({"counts": {"KillBroker": 8}}, "events"),
        ({"stored": 999}, "records"),
        ({"segments": 49}, "segments"),
        ({"expired": 0}, "expired records"),
        ({"live": 999}, "records of the endpoint"),
        ({"early": frozenset({"plain"})}, "parts of active segments"),
        ({"damages": {kind.name: kind is not Damage.CUT for kind in Damage}}, "damages CUT"),
        ({"damages": {kind.name: kind is not Damage.PUT for kind in Damage}}, "damages PUT"),
    ],
)
def test_run_with_too_few_events_is_invalid(few: dict[str, object], said: str) -> None:
    with pytest.raises(TooLittleHappenedError, match=f"too few {said} to prove"):
        replace(ENOUGH, **few).check()  # type: ignore[arg-type]


def test_only_a_report_of_expired_waits_is_tried_again() -> None:
    late = "timed out after 150 s waiting for the readers to end: {}"
    with pytest.raises(ExpiredWaitsError, match="1 violations"):
        replace(ENOUGH, violations=(late,)).check()
    with pytest.raises(AssertionError, match="2 violations") as found:
        replace(ENOUGH, violations=(late, "a record is lost")).check()
    assert not _was_too_slow(found.value)
    assert _was_too_slow(ExpiredWaitsError("1 violations"))
    assert _was_too_slow(AssertionError(late))
