"""Messages of a command while the store does not answer, and its end."""

import pytest

from sidetier.cli.stores import reporting_waits
from tests.harness.command_line import CommandLine
from tests.harness.faulty_s3 import FaultyS3, hang
from tests.harness.waiting import wait_until


def test_each_slow_attempt_of_a_request_is_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told: list[str] = []

    def lines() -> int:
        told.extend(capsys.readouterr().err.splitlines())
        return len(told)

    with reporting_waits(0.01) as calls, calls.begun("get", "a/k", "s3://bucket/prefix") as call:
        wait_until(lambda: lines() == 1, 30, "the first line")
        calls.try_again(call)
        wait_until(lambda: lines() == 2, 30, "the second line")
    assert told == [
        "sidetier: waiting for the store at s3://bucket/prefix, attempt 1 (get a/k)",
        "sidetier: waiting for the store at s3://bucket/prefix, attempt 2 (get a/k)",
    ]


def test_store_that_answers_is_not_reported(cli: CommandLine) -> None:
    cli.log_dir.create("orders").closed_segments(1)
    cli.log_dir.checkpoint_high_watermarks()
    assert cli.run("backfill") == 0
    assert cli.run("ls") == 0
    assert cli.err == ""


@pytest.mark.parametrize(
    "line", [("ls",), ("backfill", "--dry-run"), ("explain", "orders", "0", "5")]
)
def test_silent_store_is_reported_and_given_up(
    cli: CommandLine, line: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDSIDETIER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    cli.log_dir.create("orders").closed_segments(1)
    cli.log_dir.checkpoint_high_watermarks()
    with FaultyS3() as server:
        server.faults += [hang] * 10
        cli.configure(
            {
                "storage": {
                    "url": "s3://bucket/archive",
                    # One attempt, slightly longer than the delay of the first message.
                    "deadline": {"silence": "4s"},
                    "s3": {"endpoint_url": server.url, "region": "us-east-1", "path_style": True},
                }
            }
        )
        assert cli.run(*line) == 1
    first, *_ = cli.err.splitlines()
    assert first.startswith("sidetier: waiting for the store at s3://bucket/archive, attempt 1 (")
    assert "timed out" in cli.err + cli.out
