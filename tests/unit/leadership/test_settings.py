"""Settings open the source that they describe and load no other driver."""

import subprocess
import sys

import pytest

from sidetier.leadership.factory import open_leadership
from sidetier.leadership.kraft.source import KraftLeadership
from sidetier.leadership.settings import (
    KraftSettings,
    LeadershipSettings,
    StaticSettings,
    ZookeeperSettings,
)
from sidetier.leadership.static import StaticLeadership
from sidetier.leadership.zookeeper.source import ZookeeperLeadership
from sidetier.segments.offsets import BrokerId


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (KraftSettings(BrokerId(1)), KraftLeadership),
        (ZookeeperSettings(BrokerId(1), "zk:2181"), ZookeeperLeadership),
        (StaticSettings(), StaticLeadership),
    ],
)
def test_each_kind_of_settings_opens_its_source(
    settings: LeadershipSettings, kind: type[object]
) -> None:
    assert type(open_leadership(settings)) is kind


def test_only_the_needed_driver_is_loaded() -> None:
    program = (
        "import sys\n"
        "from sidetier.leadership.factory import open_leadership\n"
        "from sidetier.leadership.settings import StaticSettings\n"
        "open_leadership(StaticSettings())\n"
        "assert not {'kazoo', 'confluent_kafka', 'watchdog'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
