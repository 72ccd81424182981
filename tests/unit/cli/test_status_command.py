import json
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidetier.cli.commands.status import MAX_ROWS
from sidetier.cli.main import run
from sidetier.segments.offsets import BaseOffset, BrokerId, Offset
from sidetier.telemetry.http import HttpServer
from sidetier.telemetry.metrics import create_registry
from sidetier.telemetry.pages import Application
from sidetier.telemetry.status import (
    ClusterSnapshotStatus,
    Condition,
    DrillStatus,
    PartitionState,
    PartitionStatus,
    SegmentStatus,
    StatusSnapshot,
)

ARCHIVED = PartitionStatus(
    "orders",
    0,
    PartitionState.ARCHIVED,
    watermark_base=BaseOffset(100),
    next_offset=Offset(120),
    log_end=Offset(120),
    unarchived_records=0,
    unarchived_bytes=0,
)
ACTIVE = replace(
    ARCHIVED,
    partition=7,
    log_end=Offset(9755),
    unarchived_records=9635,
    unarchived_bytes=1_200_000,
    unarchived_age_seconds=330.0,
)
BEHIND = replace(
    ARCHIVED,
    partition=1,
    state=PartitionState.WAITING,
    unstored_segments=3,
    unstored_bytes=3_000_000,
    oldest_unstored_age_seconds=75.0,
    waiting_for="segment 120 waits for the high watermark",
)
HELD = replace(
    BEHIND,
    partition=2,
    waiting_for="another try after: put x: 403",
    last_error="put x: 403",
)
GAP = replace(ARCHIVED, partition=3, gap_records=17)
NEAR_DELETION = replace(BEHIND, partition=4, seconds_until_local_deletion=210.0)
HALTED = replace(ARCHIVED, topic="pay", partition=9, state=PartitionState.HALTED, last_error="stop")
MOVING = replace(
    ARCHIVED,
    topic="pay",
    partition=4,
    state=PartitionState.QUARANTINING,
    waiting_for="it is being moved",
    last_error="the sidecar checks again",
)
READY = (Condition("bootstrapped", holds=True),)


class Status:
    def __init__(self) -> None:
        self.now = StatusSnapshot("prod-a", BrokerId(3), conditions=READY, partitions=(ARCHIVED,))

    def show(self, *partitions: PartitionStatus) -> None:
        self.now = replace(self.now, partitions=partitions)

    def snapshot(self, *, with_partitions: bool = True) -> StatusSnapshot:  # noqa: ARG002 -- the port's
        return self.now


@pytest.fixture(autouse=True)
def no_settings_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIDETIER_CONFIG", raising=False)
    monkeypatch.delenv("SIDETIER_OUTPUT", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # must not be requested


@pytest.fixture
def status() -> Status:
    return Status()


@pytest.fixture
def url(status: Status) -> Iterator[str]:
    server = HttpServer("127.0.0.1", 0, Application(create_registry(), status))
    server.start()
    yield server.url
    server.stop()


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_healthy_sidecar_exits_with_0(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--url", url]) == 0
    head, row, summary = lines(capsys)
    assert head.split("  ")[0] == "PARTITION"
    assert head.endswith("WAITING FOR")
    assert row.split() == ["orders-0", "archived", "120", "120", "0", "-", "-"]
    assert summary == ("broker 3 of prod-a leads 1 partitions: 1 with all closed segments archived")


def test_acknowledged_gap_is_no_finding(
    url: str, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    acknowledged = replace(GAP, unresolved_gap_records=0, unresolved_quarantines=0)
    of_an_earlier_life = replace(ARCHIVED, partition=4, unresolved_gap_records=5)
    aside = replace(ARCHIVED, partition=5, unresolved_quarantines=2)
    status.show(acknowledged)
    assert run(["status", "--url", url]) == 0
    capsys.readouterr()
    status.show(acknowledged, of_an_earlier_life, aside)
    assert run(["status", "--url", url]) == 3
    shown = lines(capsys)
    assert "orders-4: 5 records were deleted before they were archived" in shown
    assert "orders-5: 2 quarantines are not acknowledged" in shown


def test_records_of_active_segments_are_reported_as_not_archived(
    url: str, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    status.show(ACTIVE, replace(ACTIVE, partition=8, unarchived_age_seconds=20.0))
    assert run(["status", "--url", url]) == 0
    head, row, _, summary, alone = lines(capsys)
    assert [*head.replace("LOG END", "LOG-END").split()][2] == "LOG-END"
    assert " 9755  " in row
    assert "9,635 rec, 1.2 MB, 6 min" in row
    assert summary.endswith("2 with all closed segments archived")
    assert alone == (
        "not archived: 19,270 records (2.4 MB of segments) are only on the brokers, "
        "the oldest for 6 min"
    )


def test_progress_of_an_upload_is_shown(
    url: str, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = SegmentStatus(
        BaseOffset(120),
        Offset(200),
        1_000_000_000,
        "uploading",
        pinned=True,
        marked_for_deletion=False,
        sent_bytes=610_000_000,
        send_bytes_per_second=48_000_000,
        send_seconds_left=8.125,
    )
    verified = replace(sent, sent_bytes=None, send_bytes_per_second=None, send_seconds_left=None)
    uploading = replace(
        BEHIND,
        state=PartitionState.UPLOADING,
        waiting_for="segment 120 is being uploaded",
        segments=(sent,),
    )
    status.show(uploading, replace(uploading, partition=2, segments=(verified,)))
    assert run(["status", "--url", url]) == 0
    _, first, second, *_ = lines(capsys)
    assert first.endswith("  is being uploaded: 610.0 MB of 1.0 GB, 48.0 MB/s, 8.1 s left")
    assert second.endswith("  is being uploaded")


def test_with_a_tail_its_end_and_the_time_that_records_wait_are_shown(
    url: str, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    safe = replace(ACTIVE, safe_to=Offset(9755), unsafe_age_seconds=0.0)
    late = replace(ACTIVE, partition=8, safe_to=Offset(9120), unsafe_age_seconds=125.0)
    status.show(ARCHIVED, safe, late, replace(ACTIVE, partition=9, unsafe_age_seconds=70.0))
    assert run(["status", "--url", url]) == 0
    head, *rows = lines(capsys)
    at = head.index("SAFE UP TO")
    cells = {row.split()[0]: row[at:].split("  ")[0].strip() for row in rows[:4]}
    assert cells == {
        "orders-0": "-",
        "orders-7": "9755",
        "orders-8": "9120, waiting 2 min",
        "orders-9": "0, waiting 1 min",
    }


def test_partitions_that_need_an_operator_come_first(
    url: str, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    status.show(ARCHIVED, BEHIND, GAP, HELD, HALTED, NEAR_DELETION)
    assert run(["status", "--url", url]) == 3
    _, *shown, summary = lines(capsys)
    rows, problems = shown[:6], shown[6:]
    assert [row.split()[:2] for row in rows] == [
        ["pay-9", "halted"],
        ["orders-4", "near_deletion"],
        ["orders-2", "held"],
        ["orders-3", "gap"],
        ["orders-1", "waiting"],
        ["orders-0", "archived"],
    ]
    assert [row.endswith("see below") for row in rows] == [True, True, True, True, False, False]
    assert rows[4].endswith("3 seg, 3.0 MB, 1 min  waits for the high watermark")
    assert problems == [
        "pay-9: last error: stop",
        (
            "orders-4: the broker deletes unarchived records in 4 min; "
            "segment 120 waits for the high watermark"
        ),
        "orders-2: another try after: put x: 403",
        "orders-3: 17 records were deleted before they were archived",
    ]
    assert summary == (
        "broker 3 of prod-a leads 6 partitions: 1 halted, 1 near the broker's deletion, "
        "1 held by errors, 1 with a gap, 1 behind, 1 with all closed segments archived; "
        "9 segments, 9.0 MB to upload, the oldest since 1 min"
    )


def test_quarantining_is_distinguished_from_halted(
    url: str, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    status.show(MOVING, HALTED)
    assert run(["status", "--url", url]) == 3
    _, first, second, *_, summary = lines(capsys)
    assert [first.split()[:2], second.split()[:2]] == [
        ["pay-9", "halted"],
        ["pay-4", "quarantining"],
    ]
    assert "1 halted, 1 being moved to quarantine" in summary


@pytest.mark.parametrize(
    ("partitions", "code"),
    [((), 0), ((ARCHIVED, BEHIND), 0), ((GAP,), 3), ((HELD,), 3), ((HALTED,), 3), ((MOVING,), 3)],
)
def test_exit_code_depends_on_the_worst_state(
    partitions: Sequence[PartitionStatus], code: int, url: str, status: Status
) -> None:
    status.show(*partitions)
    assert run(["status", "--url", url]) == code
    assert run(["status", "--url", url, "--output", "json"]) == code


def test_sidecar_that_is_not_ready_gives_the_reason(
    url: str, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "no source of leadership answers"
    conditions = (Condition("leadership known", holds=False, reason=reason),)
    status.now = replace(status.now, conditions=conditions, partitions=())
    assert run(["status", "--url", url]) == 3
    assert lines(capsys) == [
        "broker 3 of prod-a leads no partition that `topics` selects",
        f"not ready: leadership known: {reason}",
    ]


def test_unreadable_log_dir_is_a_problem(
    url: str, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    status.now = replace(status.now, log_dir_problems=("log dir /b cannot be read: EIO",))
    assert run(["status", "--sidecar", url]) == 3
    assert "log dir /b cannot be read: EIO\nbroker 3 of prod-a" in capsys.readouterr().out


def test_ages_and_problems_of_cluster_snapshots_are_shown(
    url: str, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    status.now = replace(
        status.now,
        cluster_snapshots=(
            ClusterSnapshotStatus("topics", 240.0, stored=True),
            ClusterSnapshotStatus("acls", 9.0, stored=False, problem="needs DESCRIBE"),
        ),
    )
    assert run(["status", "--sidecar", url]) == 0
    shown = lines(capsys)
    assert "cluster snapshots, by age: topics 4 min, acls pending" in shown
    assert "cluster snapshot of acls: needs DESCRIBE" in shown


@pytest.mark.parametrize(
    ("drill", "shown"),
    [
        (DrillStatus(0, succeeded=True, last_successful_ms=0), "succeeded at 1970-01-01T00:00"),
        (
            DrillStatus(60_000, succeeded=False, last_successful_ms=0, problem="orders-1: x"),
            "FAILED at 1970-01-01T00:01+00:00: orders-1: x; last success 1970-01-01T00:00+00:00",
        ),
        (
            DrillStatus(0, succeeded=False, last_successful_ms=None, problem="orders-1: x"),
            "orders-1: x; none has succeeded yet",
        ),
    ],
)
def test_last_drill_is_shown(
    url: str,
    status: Status,
    drill: DrillStatus,
    shown: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["status", "--sidecar", url]) == 0
    assert "last drill" not in capsys.readouterr().out
    status.now = replace(status.now, last_drill=drill)
    assert run(["status", "--sidecar", url]) == 0
    assert shown in next(line for line in lines(capsys) if line.startswith("last drill: "))


def test_trimmed_segments_that_are_still_on_the_disk_are_called_deleted(
    url: str, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    status.now = replace(status.now, partitions=(replace(ARCHIVED, trimmed_to=Offset(40)), BEHIND))
    assert run(["status", "--sidecar", url]) == 0
    assert (
        "local retention: the closed segments below the log start offsets of 1 partitions are "
        "deleted by the broker at its next check (log.retention.check.interval.ms)"
    ) in lines(capsys)


def test_idle_partitions_of_a_long_list_are_hidden(
    url: str, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    status.show(BEHIND, *(replace(ARCHIVED, partition=n) for n in range(10, 10 + MAX_ROWS)))
    assert run(["status", "--url", url]) == 0
    shown = lines(capsys)
    assert [line.split()[0] for line in shown[:2]] == ["PARTITION", "orders-1"]
    assert (
        shown[2]
        == f"{MAX_ROWS} more partitions have no unarchived closed segment (--all shows them)"
    )
    assert run(["status", "--url", url, "--all"]) == 0
    assert len(lines(capsys)) == MAX_ROWS + 3


def test_long_list_of_problems_is_shortened(
    url: str, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    status.show(*(replace(GAP, partition=n) for n in range(12)))
    assert run(["status", "--url", url]) == 3
    shown = lines(capsys)
    assert shown[13:-2] == [
        f"orders-{n}: 17 records were deleted before they were archived" for n in range(10)
    ]
    assert shown[-2] == "and 2 more: --output json has them all"


def test_one_topic_is_printed_as_json(
    url: str, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    status.show(ARCHIVED, HALTED)
    assert run(["status", "--url", url + "/", "--topic", "pay", "--output", "json"]) == 3
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [(row["topic"], row["partition"]) for row in found["partitions"]] == [("pay", 9)]
    assert found["problems"] == 1
    assert found["ready"] is True
    assert found["url"] == url
    assert found["conditions"] == [{"name": "bootstrapped", "holds": True, "reason": ""}]


def test_address_comes_from_the_configuration(url: str, tmp_path: Path) -> None:
    file = tmp_path / "sidetier.yaml"
    values: dict[str, Any] = {
        "cluster": {"name": "prod-a"},
        "log_dirs": ["/data"],
        "storage": {"url": "s3://bucket"},
        "http": {"host": "0.0.0.0", "port": int(url.rpartition(":")[2])},  # noqa: S104
    }
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    assert run(["status", "--config", str(file)]) == 0


def test_port_chosen_by_the_system_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sidetier.yaml"
    text = "{cluster: {name: a}, log_dirs: [/data], storage: {url: 's3://b'}, http: {port: 0}}"
    file.write_text(text, encoding="utf-8")
    assert run(["status", "--config", str(file)]) == 2
    assert "http.port is 0" in capsys.readouterr().err


def test_unavailable_sidecar_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        assert run(["status", "--url", f"http://127.0.0.1:{port}"]) == 1
    error = capsys.readouterr().err
    assert f"no sidecar answers at http://127.0.0.1:{port}" in error
    assert "is `sidetier run` up?" in error


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.0 404 Not Found\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n<html>",
        b"HTTP/1.0 200 OK\r\n\r\n[]",
        b"HTTP/1.0 200 OK\r\n\r\n{}",
    ],
)
def test_answer_of_another_service_is_an_error(
    answer: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert run(["status", "--url", f"http://127.0.0.1:{server.getsockname()[1]}"]) == 1
    assert "sidecar" in capsys.readouterr().err


@pytest.mark.parametrize("bad", ["127.0.0.1:9108", "ftp://h", "http://", "http://h:99999"])
def test_invalid_address_is_refused(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--url", bad]) == 2
    assert "expected http://host:port" in capsys.readouterr().err


def test_configured_bearer_token_is_sent(
    status: Status, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret-token\n")
    application = Application(create_registry(), status, lambda: "s3cret-token")
    server = HttpServer("127.0.0.1", 0, application)
    server.start()
    try:
        assert run(["status", "--url", server.url]) == 1
        error = capsys.readouterr().err
        assert "http.bearer_token" in error
        settings = ["cluster.name=c", "log_dirs=[/d]", "storage.url=file:///s"]
        settings.append(f"http.bearer_token={{file: {token}}}")
        given = [word for setting in settings for word in ("--set", setting)]
        assert run(["status", "--url", server.url, *given]) == 0
        assert "s3cret-token" not in "".join(capsys.readouterr())
    finally:
        server.stop()
