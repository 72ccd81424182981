"""Continuous exports into tables while the archive that they read is quarantined."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from sidetier.cli.export import session
from sidetier.cli.export.view import TableResult
from sidetier.cli.output import OutputFormat, say
from sidetier.pipeline.export.errors import LogTruncatedError, NotCommittedError
from sidetier.pipeline.export.request import TableRequest
from sidetier.pipeline.export.source import ArchiveSource
from sidetier.pipeline.export.table_export import TableExport, TableWriter
from sidetier.pipeline.planning.planner import Planner
from sidetier.pipeline.planning.split import Plan
from tests.harness.diverged_archive import (
    END,
    FORK,
    Between,
    before_the_election,
    elect_uncleanly,
    go_on,
    nothing,
    set_aside,
)
from tests.harness.made_archive import TP, MadeArchive, access_to
from tests.unit.cli.export.test_table_commands import request
from tests.unit.pipeline.export.tables.fakes import FakeTable, fake_rows

ID = "id-1"


@pytest.fixture
def orders() -> MadeArchive:
    archive = MadeArchive()
    before_the_election(archive, ID)
    return archive


def rows(plan: Plan) -> Any:  # noqa: ANN401
    spans = [(one.tp, range(one.range.start, one.range.end)) for one in plan.splits]
    return fake_rows([(tp, offset) for tp, span in spans for offset in span])


def exported(planner: Planner, table: FakeTable, asked: TableRequest) -> int:
    source = ArchiveSource("prod-a", planner, asked.read)
    nothing: Any = None
    read: Any = SimpleNamespace(missing_offsets=0)
    export = TableExport(nothing, asked, planner, source, TableWriter(table, rows, read), say)
    return session.finish(export, asked, TableResult, OutputFormat.JSON, None)


@pytest.fixture
def following(
    orders: MadeArchive, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Between]]:
    with Planner(access_to(orders.store), threads=1) as planner:

        def follow(
            table: FakeTable, *steps: Callable[[], object], words: Sequence[str] = ()
        ) -> Between:
            stop = Between(*steps)
            monkeypatch.setattr(session, "stopping", lambda **_: nullcontext(stop))
            asked = request("--follow", *words)
            exported(planner, table, asked)
            return stop

        yield follow


def offsets(table: FakeTable) -> list[int]:
    return [offset for _, offset in table.rows]


def test_round_over_a_quarantined_archive_is_planned_again(
    orders: MadeArchive, following: Callable[..., Between], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tasks fail, and Spark reports that with its own error; nothing had been exported."""

    def fork() -> None:
        elect_uncleanly(orders, topic_id=ID)
        raise NotCommittedError("a task has failed: set aside, or replaced")

    table = FakeTable(before=[fork])
    following(table, lambda: offsets(table) == [] or pytest.fail("committed"))
    assert offsets(table) == list(range(END))
    assert "set aside, or replaced; tried again" in capsys.readouterr().err


def test_truncation_of_exported_records_ends_the_export(
    orders: MadeArchive, following: Callable[..., Between]
) -> None:
    table = FakeTable()
    with pytest.raises(LogTruncatedError, match=r"offsets \[24, 40\) \(leader epoch 3, now 4\)"):
        following(table, lambda: elect_uncleanly(orders, topic_id=ID), nothing)
    assert offsets(table) == list(range(40))


def test_truncated_records_are_exported_again_with_reread(
    orders: MadeArchive, following: Callable[..., Between]
) -> None:
    table = FakeTable()
    following(
        table,
        lambda: elect_uncleanly(orders, topic_id=ID),
        nothing,
        words=["--on-truncation=reread"],
    )
    assert offsets(table) == [*range(40), *range(FORK, END)]


def test_quarantined_archive_is_waited_for_until_it_can_be_compared(
    orders: MadeArchive, following: Callable[..., Between], capsys: pytest.CaptureFixture[str]
) -> None:
    table = FakeTable()
    steps = (lambda: set_aside(orders, ID), *[nothing] * 12, lambda: go_on(orders, topic_id=ID))
    following(table, *steps, words=["--on-truncation=reread"])
    assert offsets(table) == [*range(40), *range(FORK, END)]
    told = f"up to offset 40, but the archive ends at {FORK}, of the same topic"
    assert capsys.readouterr().err.count(told) == 1


def test_quarantine_without_follow_exits_with_3(
    orders: MadeArchive, following: Callable[..., Between]
) -> None:
    table = FakeTable()
    following(table)
    set_aside(orders, ID)
    with Planner(access_to(orders.store), threads=1) as planner:
        assert exported(planner, table, request()) == 3
        assert exported(planner, table, request("--dry-run")) == 3
    assert table.commits[-1].offsets == {TP: 40}
