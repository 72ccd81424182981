"""The alert rules and the dashboard, evaluated by the real promtool."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.chart.alerts import ALERTS
from devtools.chart.dashboard import dashboard
from tests.harness.archive_objects import file_store
from tests.harness.chart import CHART, run_promtool
from tests.harness.log_dir import LogDir
from tests.harness.sidecar import Sidecar, basic_settings, merged
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

RULES = CHART / "files" / "alerts.yaml"
WHO = 'job="sidetier",instance="b1:9108",cluster="prod-a",broker="1"'
SCRAPED = 'job="sidetier",instance="b1:9108"'
TP = f'{WHO},topic="orders",partition="3"'
OLDEST_OF = f"sidetier_oldest_unstored_segment_age_seconds{{{TP}}}"
UNARCHIVED_OF = f"sidetier_oldest_unarchived_record_age_seconds{{{TP}}}"
UNSAFE = f"sidetier_unsafe_records_age_seconds{{{TP}}}"
BASE_OF = f"sidetier_watermark_base_offset{{{TP}}}"
EXCESS = f'sidetier_local_retention_excess_bytes{{{WHO},topic="orders",reason="group_behind"}}'
TRIMMED = f'sidetier_local_retention_trimmed_bytes_total{{{WHO},topic="orders"}}'
ANEW = 'job="sidetier",instance="b1-anew:9108"'
OURS = {f"sidetier_build_info{{{WHO}}}": "1x90"}
SNAPSHOT_AGE = f'sidetier_cluster_snapshot_age_seconds{{{WHO},kind="acls"}}'
DRILL = f"sidetier_last_successful_drill_timestamp_seconds{{{WHO}}}"
NODE = 'job="node",instance="n1:9100",cluster="prod-a"'
FINDING = f'sidetier_verify_findings{{{NODE},kind="damaged_log",severity='
VERIFIED = f"sidetier_verify_last_completed_timestamp_seconds{{{NODE}}}"
UNREAD = f"sidetier_verify_unread{{{NODE}}}"
COPIES = 'job="mirror",instance="m1:9109"'
MIRRORS = f"sidetier_mirror_refused_topics{{{COPIES}}}"
BESIDE = 'job="sidetier",instance="m1:9109"'
MIRROR_LAG = f'sidetier_mirror_lag_seconds{{{COPIES},topic="orders",partition="3"}}'
SERVES = 'job="serve",instance="s1:9108"'
ENDPOINTS = f"sidetier_endpoint_connections{{{SERVES}}}"
ANSWERS = f'sidetier_endpoint_requests_total{{{SERVES},api="Fetch",error='
REFUSED = f"sidetier_endpoint_refused_connections_total{{{SERVES}}}"
FAILED = f'sidetier_store_request_seconds_count{{{WHO},operation="put",outcome='
CONDITION = f"sidetier_ready_condition{{{WHO},condition="


def answered(api: str, within: str) -> dict[str, str]:
    """A histogram of an endpoint: each minute, five requests take as long as a bucket says."""
    bucket = f'sidetier_endpoint_request_seconds_bucket{{{SERVES},api="{api}",le='
    bounds = ("1.0", "5.0", "10.0", "+Inf")
    counts = dict.fromkeys(bounds[bounds.index(within) :], "0+5x60")
    return {f'{bucket}"{bound}"}}': counts.get(bound, "0x60") for bound in bounds}


def found(instance: str, values: str) -> dict[str, str]:
    """A sidecar that Prometheus discovers and that answers at these minutes."""
    who = f'job="sidetier",instance="{instance}:9108"'
    series = f'sidetier_build_info{{{who},cluster="prod-a",broker="{instance}"}}'
    return {f"up{{{who}}}": values, series: values}


@dataclass(frozen=True, slots=True)
class Case:
    """Series by the minute, and whether the alert fires at a given minute."""

    alert: str
    series: Mapping[str, str]
    minute: int
    fires: bool


CASES = (
    Case("SidetierGapFound", {f"sidetier_gap_records_total{{{TP}}}": "0x10 7x20"}, 12, fires=True),
    # A partition whose first sample already has its gap, and one above the cap of series.
    Case("SidetierGapFound", {f"sidetier_gap_records_total{{{TP}}}": "_x10 7x20"}, 12, fires=True),
    Case("SidetierGapFound", {f"sidetier_gap_records_total{{{WHO}}}": "0x9 3x9"}, 11, fires=True),
    Case("SidetierGapFound", {f"sidetier_gap_records_total{{{TP}}}": "7x40"}, 30, fires=False),
    Case("SidetierGapFound", {f"sidetier_gap_records_total{{{TP}}}": "_x10 0x20"}, 12, fires=False),
    Case("SidetierLocalRetentionStalled", {EXCESS: "5x90"}, 75, fires=True),
    Case("SidetierLocalRetentionStalled", {EXCESS: "5x90", TRIMMED: "0x90"}, 75, fires=True),
    Case("SidetierLocalRetentionStalled", {EXCESS: "5x90", TRIMMED: "0+9x90"}, 75, fires=False),
    Case("SidetierLocalRetentionStalled", {EXCESS: "5x30"}, 35, fires=False),
    Case("SidetierNearLocalDeletion", {f"sidetier_seconds_until_local_deletion{{{TP}}}": "599x5"},
         1, fires=True),
    Case("SidetierNearLocalDeletion", {f"sidetier_seconds_until_local_deletion{{{TP}}}": "-5x5"},
         1, fires=True),
    Case("SidetierNearLocalDeletion", {f"sidetier_seconds_until_local_deletion{{{TP}}}": "600x5"},
         1, fires=False),
    # Rolled because its records were too old, and stored within the minute.
    Case("SidetierNearLocalDeletion",
         {f"sidetier_seconds_until_local_deletion{{{TP}}}": "_x2 -5 stale"}, 2, fires=False),
    Case("SidetierUploadStalled",
         {f"sidetier_oldest_unstored_segment_age_seconds{{{TP}}}": "0+60x40"}, 22, fires=True),
    Case("SidetierUploadStalled",
         {f"sidetier_oldest_unstored_segment_age_seconds{{{TP}}}": "0+60x16 0x20"}, 22,
         fires=False),
    # Until it is acknowledged, also after a restart or under another broker's lead.
    Case("SidetierGapFound", {f"sidetier_unresolved_gap_records{{{TP}}}": "7x120"}, 110,
         fires=True),
    Case("SidetierGapFound", {f"sidetier_unresolved_gap_records{{{TP}}}": "7x20 0x20"}, 30,
         fires=False),
    Case("SidetierNeverArchived", {OLDEST_OF: "3000+60x60"}, 40, fires=True),
    Case("SidetierNeverArchived", {UNARCHIVED_OF: "691000+60x60"}, 40, fires=True),
    Case("SidetierNeverArchived", {OLDEST_OF: "3000+60x60", BASE_OF: "0x60"}, 40, fires=False),
    Case("SidetierNeverArchived",
         {f"sidetier_oldest_unstored_segment_age_seconds{{{WHO}}}": "9000x60"}, 40, fires=False),
    Case("SidetierArchiveBehind", {UNARCHIVED_OF: "86000+60x60"}, 40, fires=True),
    Case("SidetierArchiveBehind", {UNARCHIVED_OF: "0x20 86300+60x10 0x20"}, 45, fires=False),
    Case("SidetierPartitionHalted", {f'sidetier_partition_state{{{TP},state="halted"}}': "1x20"}, 6,
         fires=True),
    Case("SidetierPartitionHalted",
         {f'sidetier_partition_state{{{TP},state="archived"}}': "1x20"}, 6, fires=False),
    # Above the cap of series the partition has no name; below it, one alert is enough.
    Case("SidetierPartitionHalted", {f'sidetier_partitions{{{WHO},state="halted"}}': "1x20"}, 6,
         fires=True),
    Case("SidetierPartitionHalted", {f'sidetier_partitions{{{WHO},state="halted"}}': "1x20",
                                     f'sidetier_partition_state{{{TP},state="halted"}}': "1x20"}, 6,
         fires=True),
    Case("SidetierPartitionHalted", {f'sidetier_partitions{{{WHO},state="waiting"}}': "9x20"}, 6,
         fires=False),
    Case("SidetierLeadershipUnknown", {f'{CONDITION}"leadership_known"}}': "0x20"}, 6, fires=True),
    Case("SidetierLeadershipUnknown", {f'{CONDITION}"leadership_known"}}': "1x20"}, 6,
         fires=False),
    Case("SidetierStoreUnreachable", {f'{CONDITION}"store_reachable"}}': "0x20"}, 6, fires=True),
    Case("SidetierStoreUnreachable", {f'{CONDITION}"bootstrapped"}}': "0x20"}, 6, fires=False),
    Case("SidetierStoreRefusing", {f'{FAILED}"access_denied"}}': "0+1x30"}, 15, fires=True),
    Case("SidetierStoreRefusing", {f'{FAILED}"store_full"}}': "0+1x30"}, 15, fires=True),
    Case("SidetierStoreRefusing", {f'{FAILED}"encryption"}}': "0+1x30"}, 15, fires=True),
    Case("SidetierStoreRefusing", {f'{FAILED}"condition_refused"}}': "0+1x30"}, 15, fires=True),
    Case("SidetierStoreRefusing", {f'{FAILED}"precondition_failed"}}': "0+1x30"}, 15, fires=False),
    # One refused request, long ago.
    Case("SidetierStoreRefusing", {f'{FAILED}"access_denied"}}': "0x5 1x40"}, 13, fires=False),
    Case("SidetierConflicts", {f"sidetier_conflicts_total{{{WHO}}}": "0+1x40"}, 30, fires=True),
    # The leaders of many partitions have moved at once.
    Case("SidetierConflicts", {f"sidetier_conflicts_total{{{WHO}}}": "0x9 40x40"}, 15, fires=False),
    Case("SidetierConflicts", {f"sidetier_conflicts_total{{{WHO}}}": "0x9 40x40"}, 25, fires=False),
    Case("SidetierConflicts", {f"sidetier_conflicts_total{{{WHO}}}": "0x9 3x20"}, 20, fires=False),
    Case("SidetierQuarantined", {f"sidetier_unresolved_quarantines{{{TP}}}": "1x120"}, 110,
         fires=True),
    Case("SidetierQuarantined", {f"sidetier_unresolved_quarantines{{{TP}}}": "1x20 0x60"}, 40,
         fires=False),
    Case("SidetierRescuing", {f"sidetier_rescued_segments_total{{{WHO}}}": "0x5 2x60"}, 30,
         fires=True),
    Case("SidetierRescuing", {f"sidetier_rescued_segments_total{{{WHO}}}": "0x90"}, 80,
         fires=False),
    Case("SidetierHoldsDisk", {f"sidetier_pinned_deleted_bytes{{{WHO}}}": "6000000000x20"}, 12,
         fires=True),
    Case("SidetierHoldsDisk", {f"sidetier_pinned_deleted_bytes{{{WHO}}}": "5000000000x20"}, 12,
         fires=False),
    Case("SidetierClusterSnapshotOld", {SNAPSHOT_AGE: "3500+60x60"}, 40, fires=True),
    # Another sidecar of the cluster has read a newer one.
    Case("SidetierClusterSnapshotOld",
         {SNAPSHOT_AGE: "3500+60x60", SNAPSHOT_AGE.replace("b1", "b2"): "60x60"}, 40, fires=False),
    Case("SidetierLogDirProblem", {f"sidetier_log_dir_problems{{{WHO}}}": "0x5 2x20"}, 12,
         fires=True),
    Case("SidetierLogDirProblem", {f"sidetier_log_dir_problems{{{WHO}}}": "0x5 2x3 0x20"}, 12,
         fires=False),
    Case("SidetierTailBehind", {UNSAFE: "0x2 61x5"}, 5, fires=True),
    Case("SidetierTailBehind", {UNSAFE: "0x2 61 0x5"}, 5, fires=False),
    Case("SidetierTailPackUnreadable", {f"sidetier_tail_unread_packs{{{WHO}}}": "0x5 1x20"}, 22,
         fires=True),
    # The next cleaning read it.
    Case("SidetierTailPackUnreadable", {f"sidetier_tail_unread_packs{{{WHO}}}": "0x5 1x9 0x9"}, 22,
         fires=False),
    Case("SidetierTailRecordsLost", {f"sidetier_tail_stale_offsets{{{WHO}}}": "0x5 40x20"}, 12,
         fires=True),
    Case("SidetierTailRecordsLost", {f"sidetier_tail_stale_offsets{{{WHO}}}": "0x30"}, 12,
         fires=False),
    Case("SidetierDrillOld", {DRILL: "-1296000x90"}, 70, fires=True),
    Case("SidetierDrillOld", {DRILL: "-1280000x90"}, 70, fires=False),
    # Sidecars read the record at different times: the newest success counts.
    Case("SidetierDrillOld", {DRILL: "-1296000x90", DRILL.replace("b1", "b2"): "-60x90"}, 70,
         fires=False),
    Case("SidetierDrillOld", OURS, 70, fires=False),
    Case("SidetierVerifyFindings", {f'{FINDING}"error"}}': "0x5 1x20"}, 8, fires=True),
    # The next run has found nothing.
    Case("SidetierVerifyFindings", {f'{FINDING}"error"}}': "1x5 0x20"}, 8, fires=False),
    Case("SidetierVerifyFindings", {f'{FINDING}"warning"}}': "3x20"}, 8, fires=False),
    Case("SidetierVerifyIncomplete", {VERIFIED: "-172800x90"}, 70, fires=True),
    Case("SidetierVerifyIncomplete", {VERIFIED: "-170000x90",
                                      UNREAD: "2x90"}, 70, fires=True),
    Case("SidetierVerifyIncomplete", {VERIFIED: "-160000x90",
                                      UNREAD: "0x90"}, 70, fires=False),
    # A CronJob ran on another node the last time.
    Case("SidetierVerifyIncomplete", {VERIFIED: "-172800x90",
                                      VERIFIED.replace("n1", "n2"): "-60x90"}, 70, fires=False),
    Case("SidetierVerifyIncomplete", {VERIFIED: "-90000x90", UNREAD: "2x90",
                                      VERIFIED.replace("n1", "n2"): "-60x90",
                                      UNREAD.replace("n1", "n2"): "0x90"}, 70, fires=False),
    # The newest run could not read everything, and that of another cluster on its node could.
    Case("SidetierVerifyIncomplete", {VERIFIED: "-90000x90", UNREAD: "0x90",
                                      VERIFIED.replace("n1", "n2"): "-60x90",
                                      UNREAD.replace("n1", "n2"): "2x90",
                                      VERIFIED.replace("prod-a", "prod-b"): "-30x90",
                                      UNREAD.replace("prod-a", "prod-b"): "0x90"}, 70,
         fires=True),
    # The run on the other node was interrupted, and its last complete one is older.
    Case("SidetierVerifyIncomplete", {VERIFIED: "-90000x90", UNREAD: "2x90",
                                      VERIFIED.replace("n1", "n2"): "-99000x90",
                                      UNREAD.replace("n1", "n2"): "0x90"}, 70, fires=True),
    Case("SidetierMirrorGap", {f"sidetier_mirror_gap_records_total{{{COPIES}}}": "0x10 7x20"}, 12,
         fires=True),
    Case("SidetierMirrorGap", {f"sidetier_mirror_gap_records_total{{{COPIES}}}": "_x10 7x20"}, 12,
         fires=True),
    Case("SidetierMirrorGap", {f"sidetier_mirror_gap_records_total{{{COPIES}}}": "7x40"}, 30,
         fires=False),
    Case("SidetierMirrorBehind", {MIRROR_LAG: "0+60x60"}, 45, fires=True),
    # A first copy that catches up, and a lag that stays small.
    Case("SidetierMirrorBehind", {MIRROR_LAG: "90000-60x60"}, 45, fires=False),
    Case("SidetierMirrorBehind", {MIRROR_LAG: "0+9x60"}, 45, fires=False),
    Case("SidetierMirrorRefused", {f"sidetier_mirror_refused_topics{{{COPIES}}}": "0x5 1x60"}, 25,
         fires=True),
    Case("SidetierMirrorRefused", {f"sidetier_mirror_refused_topics{{{COPIES}}}": "1x5 0x60"}, 25,
         fires=False),
    Case("SidetierMirrorRefused", {f"sidetier_mirror_left_out_partitions{{{COPIES}}}": "0x5 1x60",
                                   f"sidetier_mirror_refused_topics{{{COPIES}}}": "0x60"}, 25,
         fires=True),
    Case("SidetierMirrorAborts", {f"sidetier_mirror_aborts_total{{{COPIES}}}": "0+1x60"}, 40,
         fires=True),
    # A broker was restarted.
    Case("SidetierMirrorAborts", {f"sidetier_mirror_aborts_total{{{COPIES}}}": "0x9 9x60"}, 40,
         fires=False),
    Case("SidetierMirrorDown", {f"up{{{COPIES}}}": "1x5 0x40", MIRRORS: "1x5"}, 12, fires=True),
    # The pod was recreated and has never answered at its new address.
    Case("SidetierMirrorDown", {'up{job="mirror",instance="m2:9109"}': "_x6 0x40",
                                MIRRORS: "1x5 stale"}, 13, fires=True),
    # All targets are gone, and with them their discovery.
    Case("SidetierMirrorDown", {f"up{{{COPIES}}}": "1x5 stale", MIRRORS: "1x5 stale"}, 12,
         fires=True),
    Case("SidetierMirrorDown", {f"up{{{COPIES}}}": "1x40", MIRRORS: "0x40"}, 12, fires=False),
    # A sidecar that is down beside a mirror, discovered by one job.
    Case("SidetierMirrorDown", {f"up{{{SCRAPED}}}": "0x40", **OURS,
                                f"up{{{BESIDE}}}": "1x40",
                                f"sidetier_mirror_refused_topics{{{BESIDE}}}": "0x40"}, 12,
         fires=False),
    Case("SidetierServeDown", {f"up{{{SERVES}}}": "1x5 0x40", ENDPOINTS: "3x5"}, 12, fires=True),
    # A new pod has never answered, beside one that does.
    Case("SidetierServeDown", {f"up{{{SERVES}}}": "1x40", ENDPOINTS: "3x40",
                               'up{job="serve",instance="s2:9108"}': "_x6 0x40"}, 13, fires=True),
    Case("SidetierServeDown", {f"up{{{SERVES}}}": "1x5 stale", ENDPOINTS: "3x5 stale"}, 12,
         fires=True),
    # One of two pods was removed.
    Case("SidetierServeDown", {f"up{{{SERVES}}}": "1x5 stale", ENDPOINTS: "3x5 stale",
                               'up{job="serve",instance="s2:9108"}': "1x40",
                               'sidetier_endpoint_connections{job="serve",instance="s2:9108"}':
                               "0x40"}, 12, fires=False),
    Case("SidetierServeErrors", {f'{ANSWERS}"kafka_storage_error"}}': "0+1x30"}, 15, fires=True),
    Case("SidetierServeErrors", {f'{ANSWERS}"corrupt_message"}}': "0+1x30"}, 15, fires=True),
    Case("SidetierServeErrors", {f'{ANSWERS}"message_too_large"}}': "0+1x30"}, 15, fires=True),
    # A consumer of a topic with a gap, and a store that was away for a minute.
    Case("SidetierServeErrors", {f'{ANSWERS}"offset_out_of_range"}}': "0+1x30"}, 15, fires=False),
    Case("SidetierServeErrors", {f'{ANSWERS}"kafka_storage_error"}}': "0x5 9x40"}, 13,
         fires=False),
    Case("SidetierServeRefusing", {REFUSED: "0+1x30"}, 15, fires=True),
    Case("SidetierServeRefusing", {REFUSED: "0x5 9x40"}, 13, fires=False),
    Case("SidetierServeSlow", answered("ListOffsets", "10.0"), 30, fires=True),
    Case("SidetierServeSlow", answered("ListOffsets", "5.0"), 30, fires=False),
    # Consumers at the end of their partitions, with fetch.max.wait.ms=10000.
    Case("SidetierServeSlow", answered("Fetch", "10.0"), 30, fires=False),
    Case("SidetierServeGap", {f"sidetier_endpoint_live_gaps_total{{{SERVES}}}": "0x5 1x30"}, 7,
         fires=True),
    Case("SidetierServeGap", {f"sidetier_endpoint_live_gaps_total{{{SERVES}}}": "7x40"}, 20,
         fires=False),
    Case("SidetierServeLiveAway",
         {f"sidetier_endpoint_live_unavailable_brokers{{{SERVES}}}": "0x5 1x30"}, 20, fires=True),
    # A broker was restarted.
    Case("SidetierServeLiveAway",
         {f"sidetier_endpoint_live_unavailable_brokers{{{SERVES}}}": "0x5 1x3 0x30"}, 20,
         fires=False),
    Case("SidetierNotReady", {f"sidetier_ready{{{WHO}}}": "0x20"}, 16, fires=True),
    Case("SidetierNotReady", {f"sidetier_ready{{{WHO}}}": "0x10 1x10"}, 16, fires=False),
    Case("SidetierRestarting", {f"process_start_time_seconds{{{WHO}}}": "100+60x5 500x50", **OURS},
         10, fires=True),
    Case("SidetierRestarting", {f"process_start_time_seconds{{{WHO}}}": "100x60", **OURS}, 10,
         fires=False),
    Case("SidetierRestarting", {f"process_start_time_seconds{{{WHO}}}": "100+60x5 500x50"}, 10,
         fires=False),  # of another program
    Case("SidetierDown",
         {f"up{{{SCRAPED}}}": "1x5 0x40", f"sidetier_build_info{{{WHO}}}": "1x5"}, 12, fires=True),
    # The pod was recreated, and its sidecar has never answered at its new address.
    Case("SidetierDown", {f"up{{{ANEW}}}": "_x6 0x40",
                          f"sidetier_build_info{{{WHO}}}": "1x5 stale"}, 13, fires=True),
    Case("SidetierDown", {'up{job="another",instance="b1:9308"}': "0x40", **OURS}, 12, fires=False),
    Case("SidetierDown", {f"up{{{SCRAPED}}}": "0x40"}, 12, fires=False),
    Case("SidetierDown", {f"up{{{SCRAPED}}}": "1x40", **OURS}, 12, fires=False),
    # No longer discovered: one of two targets, and all of them.
    Case("SidetierMissing", {**found("b1", "1x99"), **found("b2", "1x20 stale")}, 60, fires=True),
    Case("SidetierMissing", {**found("b1", "1x20 stale"), **found("b2", "1x20 stale")}, 60,
         fires=True),
    # Recreated at another address, and down: another alert covers this case.
    Case("SidetierMissing", {**found("b1", "1x20 stale"), **found("b2", "_x22 1x80")}, 90,
         fires=False),
    Case("SidetierMissing", {**found("b1", "1x99"), f"up{{{ANEW}}}": "1x20 0x99",
                             f"sidetier_build_info{{{ANEW}}}": "1x20 stale"}, 90, fires=False),
)  # fmt: skip


def as_test(case: Case, every: str = "1m") -> dict[str, Any]:
    """A promtool test; `every` is the interval between values of the series."""
    firing = f'count(ALERTS{{alertname="{case.alert}",alertstate="firing"}}) or vector(0)'
    return {
        "name": f"{case.alert} {'fires' if case.fires else 'is silent'}: {case.series}",
        "interval": every,
        "input_series": [{"series": s, "values": values} for s, values in case.series.items()],
        "promql_expr_test": [
            {
                "expr": firing,
                "eval_time": f"{case.minute}m",
                "exp_samples": [{"labels": "{}", "value": int(case.fires)}],
            }
        ],
    }


def judged(
    cases: tuple[Case, ...], directory: Path, rules: Path = RULES, every: str = "1m"
) -> tuple[int, str]:
    """Promtool's result for these cases."""
    file = directory / "test.yaml"
    content = {
        "rule_files": [str(rules)],
        "evaluation_interval": every,
        "tests": [as_test(case, every) for case in cases],
    }
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    ran = run_promtool("test", "rules", file)
    return ran.code, ran.out + ran.err


def test_every_alert_fires_exactly_when_it_should(tmp_path: Path) -> None:
    names = {alert.name for alert in ALERTS}
    assert {case.alert for case in CASES if case.fires} == names
    assert {case.alert for case in CASES if not case.fires} == names
    code, said = judged(CASES, tmp_path)
    assert code == 0, said


def test_alert_fires_for_a_sidecar_that_is_down_for_more_than_a_day(tmp_path: Path) -> None:
    """The alert searches the build info of the last day: 1,440 minutes, here in steps of four."""
    series = {f"up{{{SCRAPED}}}": "1 0x400", f"sidetier_build_info{{{WHO}}}": "1 stale"}
    case = Case("SidetierDown", series, 1560, fires=True)
    code, said = judged((case,), tmp_path, every="4m")
    assert code == 0, said


@pytest.mark.parametrize("name", [alert.name for alert in ALERTS])
def test_each_case_depends_on_its_rule(name: str, tmp_path: Path) -> None:
    content = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    (group,) = content["groups"]
    group["rules"] = [rule for rule in group["rules"] if rule["alert"] != name]
    without = tmp_path / "rules.yaml"
    without.write_text(yaml.safe_dump(content), encoding="utf-8")
    fires = tuple(case for case in CASES if case.alert == name and case.fires)
    code, said = judged(fires, tmp_path, without)
    assert code != 0
    assert name in said


def test_rules_are_well_formed() -> None:
    ran = run_promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert ran.code == 0, ran.out + ran.err
    assert f"{len(ALERTS)} rules found" in ran.out


def test_every_dashboard_panel_has_a_valid_query(tmp_path: Path) -> None:
    queries = [
        target["expr"]
        .replace("$__rate_interval", "5m")
        .replace("$__range", "1h")
        .replace("$top,", "10,")
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    ]
    rules = [{"record": f"query:{i}", "expr": query} for i, query in enumerate(queries)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "a", "rules": rules}]}), encoding="utf-8")
    ran = run_promtool("check", "rules", "--lint=none", file)
    assert ran.code == 0, ran.out + ran.err
    assert f"{len(queries)} rules found" in ran.out


def picture(title: str) -> str:
    """The first query of a panel, over all targets and the last hour."""
    (panel,) = (panel for panel in dashboard()["panels"] if panel["title"] == title)
    query: str = panel["targets"][0]["expr"]
    for variable, value in {
        "$cluster": ".*",
        "$job": ".*",
        "$instance": ".*",
        "$topic": ".*",
        "$top,": "2,",
        "$__range": "1h",
    }.items():
        query = query.replace(variable, value)
    return query


def test_lost_records_are_shown_from_the_first_sample_on(tmp_path: Path) -> None:
    gaps = "sidetier_gap_records_total"
    series = {
        f"{gaps}{{{TP}}}": "_x40 7x60",  # its first gap, within the hour
        f'{gaps}{{{WHO},topic="orders",partition="4"}}': "_x40 5x10 stale",  # no longer led
        f'{gaps}{{{WHO},topic="orders",partition="5"}}': "100x100",  # long ago
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": s, "values": values} for s, values in series.items()],
        "promql_expr_test": [
            {
                "expr": picture("Records lost"),
                "eval_time": "70m",
                "exp_samples": [{"labels": "{}", "value": 12}],
            }
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}), encoding="utf-8")
    ran = run_promtool("test", "rules", file)
    assert ran.code == 0, ran.out + ran.err


def test_table_shows_the_partitions_with_the_largest_lag(tmp_path: Path) -> None:
    def lag(partition: int, broker: int = 1) -> str:
        labels = f'job="sidetier",instance="b{broker}:9108",cluster="prod-a",broker="{broker}"'
        topic = f',topic="orders",partition="{partition}"' if partition >= 0 else ""
        return f"sidetier_remote_copy_lag_bytes{{{labels}{topic}}}"

    series = {lag(0): 7, lag(1): 900, lag(2): 0, lag(3, broker=2): 50, lag(-1): 99_999}
    table = picture("Most bytes that are not stored")
    labels = 'cluster="prod-a",topic="orders"'
    test = {
        "interval": "1m",
        "input_series": [{"series": s, "values": f"{value}x9"} for s, value in series.items()],
        "promql_expr_test": [
            {
                "expr": table,
                "eval_time": "5m",
                "exp_samples": [
                    {"labels": f'{{{labels},broker="1",partition="1"}}', "value": 900},
                    {"labels": f'{{{labels},broker="2",partition="3"}}', "value": 50},
                ],
            }
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [], "tests": [test]}), encoding="utf-8")
    ran = run_promtool("test", "rules", file)
    assert ran.code == 0, ran.out + ran.err


def test_metrics_of_a_real_sidecar_pass_promtool(tmp_path: Path) -> None:
    log_dir = LogDir(tmp_path / "logs")
    log_dir.create("t").closed_segments(3)
    log_dir.checkpoint_high_watermarks()
    store = file_store(tmp_path / "store")
    settings = merged(
        basic_settings([tmp_path / "logs"], store), {"leadership": {"source": "static"}}
    )
    with Sidecar(tmp_path / "sidecar", settings, store) as sidecar:
        sidecar.wait_until_ready()
        wait_until(lambda: sidecar.metric("sidetier_uploaded_segments_total") == 3, 30, "uploads")
        wait_until(
            lambda: sidecar.metric("sidetier_ready_condition", condition="leadership_known") == 1,
            30,
            "the condition",
        )
        status, text = sidecar.get("/metrics")
    assert status == 200
    assert "sidetier_store_request_seconds_bucket" in text
    ran = run_promtool("check", "metrics", given=text)
    assert (ran.code, ran.out + ran.err) == (0, "")
