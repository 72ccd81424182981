"""Everything goes wrong for minutes, as a seed wills it, and nothing is lost.

`CHAOS_SECONDS` and `CHAOS_SEED` make it longer, and another one.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from devtools.sandbox.kafka import KafkaCluster
from tests.end_to_end.chaos.run import Chaos, Report
from tests.end_to_end.chaos.scene import CONTROLLERS, make_disks
from tests.end_to_end.chaos.schedule import draw_tail
from tests.end_to_end.chaos.store import ChaosStore, azure_chaos, s3_chaos
from tests.harness.azure import AzureContainer
from tests.harness.ci import SEARCHES
from tests.harness.clusters import KraftFactory, ZookeeperFactory
from tests.harness.disks import Disk
from tests.harness.s3 import S3Bucket

SECONDS = float(os.environ.get("CHAOS_SECONDS", "0"))
SEED = int(os.environ.get("CHAOS_SEED", "4711"))
KRAFT_SECONDS = SECONDS or 90.0
ZOOKEEPER_SECONDS = SECONDS or 70.0
AZURE_SECONDS = SECONDS or 45.0
_AROUND_SECONDS = 600
_LONGER = 2.5
"""Maximum duration of a run as a multiple of its scheduled duration, on a busy machine: it may run
for twice that duration until enough has happened, and then reads everything back.
"""

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.alone, SEARCHES]


@pytest.mark.timeout(KRAFT_SECONDS * _LONGER + _AROUND_SECONDS)
def test_nothing_is_lost_with_kraft(
    kraft_cluster: KraftFactory,
    s3_bucket: S3Bucket,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    chaos = Chaos(SEED, KRAFT_SECONDS, tmp_path, draw_tail(SEED) if SECONDS else 2.0)
    with make_disks(tmp_path / "kraft-1") as disks:
        cluster = kraft_cluster(brokers=3, controllers=CONTROLLERS, properties=chaos.properties)
        _judge(chaos, cluster, s3_chaos(s3_bucket), disks, record_property)


@pytest.mark.timeout(ZOOKEEPER_SECONDS * _LONGER + _AROUND_SECONDS)
def test_nothing_is_lost_with_zookeeper(
    zookeeper_cluster: ZookeeperFactory,
    s3_bucket: S3Bucket,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    chaos = Chaos(SEED, ZOOKEEPER_SECONDS, tmp_path, draw_tail(SEED) if SECONDS else None)
    with make_disks(tmp_path / "zookeeper-1") as disks:
        cluster = zookeeper_cluster(brokers=3, properties=chaos.properties)
        _judge(chaos, cluster, s3_chaos(s3_bucket), disks, record_property)


@pytest.mark.timeout(AZURE_SECONDS * _LONGER + _AROUND_SECONDS)
def test_nothing_is_lost_on_azure(
    kraft_cluster: KraftFactory,
    azure_container: AzureContainer,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    chaos = Chaos(SEED, AZURE_SECONDS, tmp_path)
    with make_disks(tmp_path / "kraft-1") as disks:
        cluster = kraft_cluster(brokers=3, controllers=CONTROLLERS, properties=chaos.properties)
        _judge(chaos, cluster, azure_chaos(azure_container), disks, record_property)


def _judge(
    chaos: Chaos,
    cluster: KafkaCluster,
    store: ChaosStore,
    disks: Mapping[int, Disk],
    record_property: Callable[[str, object], None],
) -> None:
    record_property("chaos", chaos.title)
    report: Report = chaos.run(cluster, store, disks)
    record_property("chaos", f"{chaos.title}: {report.summary}")
    print(report.text if report.violations else report.summary)  # noqa: T201 - shown with -s
    report.check()
