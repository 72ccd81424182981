"""`explain`, `can-i-lose` and `doctor` beside real brokers, a sidecar and an S3 server."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from devtools.sandbox.kafka import KraftCluster
from sidetier.cli.main import run
from tests.harness.archive_check import wait_until_stored
from tests.harness.archive_objects import s3_store
from tests.harness.ledger import Ledger
from tests.harness.local_segments import (
    SEGMENT_BYTES,
    closed_end,
    small_segments,
    wait_until_gone,
)
from tests.harness.s3 import S3Bucket
from tests.harness.s3_proxy import S3Proxy, always, answer
from tests.harness.sidecar import Sidecar, beside, merged
from tests.harness.topics import create_topic, watermark_offsets
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]

HASTY = {"storage": {"retry": {"max_elapsed": "1s"}}}
Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run a command in this process with a sidecar's configuration; return its JSON and exit
    code.
    """

    def command(sidecar: Sidecar, *line: object, environment: Mapping[str, str]) -> dict[str, Any]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        words = [str(word) for word in line]
        common = ["--config", str(sidecar.config), "--sidecar", sidecar.url, "--output", "json"]
        code = run([words[0], *common, *words[1:]])
        told: dict[str, Any] = json.loads(capsys.readouterr().out)
        return {**told, "code": code}

    return command


def test_explain_follows_a_record_from_the_active_segment_to_the_store(
    kraft43: KraftCluster, topic: str, tmp_path: Path, s3_bucket: S3Bucket, ask: Ask
) -> None:
    bootstrap, directory = kraft43.bootstrap_servers, kraft43.log_dirs(1)[0] / f"{topic}-0"
    configs = small_segments(
        retention_bytes=2 * SEGMENT_BYTES, file_delete_delay_ms=200, segment_ms=3_600_000
    )
    create_topic(bootstrap, topic, configs=configs)
    ledger = Ledger()
    with S3Proxy(s3_bucket.server.port) as proxy:
        store = s3_store(s3_bucket, proxy.url)
        settings = merged(beside(kraft43, store, topics=[topic]), HASTY)
        with Sidecar(tmp_path, settings, store) as sidecar:

            def explain(offset: int) -> dict[str, Any]:
                environment = store.environment
                return ask(sidecar, "explain", topic, 0, offset, environment=environment)

            def gate() -> tuple[str, str | None]:
                told = explain(end)
                return told["answer"], told["gate"]

            sidecar.wait_until_ready()
            ledger.produce(bootstrap, topic, 60)
            end = closed_end(directory)
            wait_until_stored(store.objects, topic, 0, end)
            told = explain(0)
            assert (told["answer"], told["code"], told["problems"]) == ("stored", 0, {})
            assert told["archive"]["holder"]["base_offset"] == 0
            told = explain(end)
            assert (told["answer"], told["gate"], told["code"]) == ("waits", "active_segment", 3)
            assert (
                f"of {SEGMENT_BYTES / 1000:.1f} kB) or with the first append after" in told["text"]
            )
            assert told["disk"]["segment"]["base_offset"] == end
            told = explain(60)
            assert (told["answer"], told["code"]) == ("not_written", 4)

            proxy.misbehave(always(answer(503, "SlowDown")))
            ledger.produce(bootstrap, topic, 200)
            wait_until_gone(directory, below=end + 20)
            wait_until(lambda: gate() == ("waits", "held"), 60, "a failure to be told")
            told = explain(end)
            assert (told["answer"], told["gate"], told["code"]) == ("waits", "held", 3)
            assert "503" in told["text"]
            assert told["disk"]["segment"] is None
            assert told["sidecar"]["pin"]["start_offset"] <= end
            assert "SlowDown" in told["problems"]["archive"]

            told = ask(sidecar, "can-i-lose", 1, environment=store.environment)
            [risks] = [part["at_risk"] for part in told["partitions"] if part["topic"] == topic]
            pinned = [
                risk for risk in risks if "only the broker's sidecar holds them" in risk["why"]
            ]
            assert pinned[0]["start_offset"] <= end
            assert pinned[0]["end_offset"] == watermark_offsets(bootstrap, topic)[0]

            proxy.heal()
            wait_until(lambda: gate() == ("stored", None), 90, "the held segment to be stored")
            assert sidecar.stop() == 0
    assert watermark_offsets(bootstrap, topic)[0] > end


def test_broker_can_be_lost_if_another_replica_or_the_archive_has_everything(
    pair: KraftCluster, topic: str, tmp_path: Path, s3_bucket: S3Bucket, ask: Ask
) -> None:
    bootstrap, (one, two) = pair.bootstrap_servers, pair.broker_ids
    configs = small_segments(min_insync_replicas=1)
    alone = f"{topic}-alone"
    create_topic(bootstrap, topic, assignment=[[one, two]], configs=configs)
    create_topic(bootstrap, alone, assignment=[[one]], configs=configs)
    store = s3_store(s3_bucket)
    with Sidecar(tmp_path, beside(pair, store, broker_id=one), store) as sidecar:

        def lose() -> dict[str, Any]:
            told = ask(sidecar, "can-i-lose", one, environment=store.environment)
            told["ranges"] = {
                (part["topic"], risk["start_offset"], risk["end_offset"])
                for part in told["partitions"]
                for risk in part["at_risk"]
                if part["topic"] in {topic, alone}
            }
            return told

        sidecar.wait_until_ready()
        for name in (topic, alone):
            Ledger().produce(bootstrap, name, 110, settings={"acks": "all"})
        directory = pair.log_dirs(one)[0]
        ends = {name: closed_end(directory / f"{name}-0") for name in (topic, alone)}
        for name, end in ends.items():
            wait_until_stored(store.objects, name, 0, end)
        told = lose()
        assert (told["code"], told["can_be_lost"]) == (3, False)
        assert told["ranges"] == {(alone, ends[alone], 110)}
        active = directory / f"{alone}-0" / f"{ends[alone]:020d}.log"
        assert told["bytes_at_risk"] == active.stat().st_size

        pair.stop_broker(two)
        try:
            told = lose()
            assert told["ranges"] == {(alone, ends[alone], 110), (topic, ends[topic], 110)}
            [risks] = [part["at_risk"] for part in told["partitions"] if part["topic"] == topic]
            assert risks[0]["why"] == f"not archived yet; broker {two} is down"
        finally:
            pair.start_broker(two)
        wait_until(lambda: lose()["ranges"] == {(alone, ends[alone], 110)}, 60, "broker 2 in sync")
        assert sidecar.stop() == 0


def test_doctor_reads_the_real_settings(
    kraft43: KraftCluster, topic: str, tmp_path: Path, s3_bucket: S3Bucket, ask: Ask
) -> None:
    bootstrap = kraft43.bootstrap_servers
    configs = small_segments(file_delete_delay_ms=3_600_000, segment_ms=3_600_000)
    create_topic(bootstrap, topic, configs=configs)
    risky = f"{topic}-risky"
    more = small_segments(cleanup_policy="compact", unclean_leader_election_enable="true")
    create_topic(bootstrap, risky, configs=more)
    Ledger().produce(bootstrap, topic, 60)
    store = s3_store(s3_bucket)
    with Sidecar(tmp_path, beside(kraft43, store, topics=[f"{topic}.*"]), store) as sidecar:
        wait_until_stored(
            store.objects, topic, 0, closed_end(kraft43.log_dirs(1)[0] / f"{topic}-0")
        )
        before = store.objects.listing()
        told = ask(sidecar, "doctor", "--try-conditions", environment=store.environment)
        assert store.objects.listing() == before
        assert sidecar.stop() == 0
    found = {one["check"]: (one["level"], one["found"]) for one in told["findings"]}
    assert told["code"] == 3
    assert found["compacted topics"] == (
        "problem",
        f"not archived, because they are compacted: {risky}",
    )
    assert found["unclean election"][0] == "problem"
    assert risky in found["unclean election"][1]
    assert found["file.delete.delay.ms"][0] == "advice"
    assert found["file.delete.delay.ms"][1].startswith(f"1 min on {risky}: a sidecar that is down")
    assert found["segment.ms"][1].endswith(f"their segment closes: {risky}")
    assert (
        found["conditional writes"][1]
        == "honoured: the store refused two writes, and accepted one, as it had to"
    )
    for check in ("log dirs", "store", "layout", "clock"):
        assert found[check][0] == "ok", found[check]
