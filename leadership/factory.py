"""Open the source of leadership. Drivers are imported only when needed."""

from sidetier.leadership.port import LeadershipSource
from sidetier.leadership.settings import (
    KraftSettings,
    LeadershipSettings,
    StaticSettings,
    ZookeeperSettings,
)


def open_leadership(settings: LeadershipSettings) -> LeadershipSource:
    """Return a source that is not started yet. Its driver is imported only now.

    Raises:
        ConfigurationError: The settings contradict each other, or a driver is missing.
    """
    match settings:
        case KraftSettings():
            from sidetier.leadership.kraft.source import KraftLeadership  # noqa: PLC0415

            return KraftLeadership(settings)
        case ZookeeperSettings():
            from sidetier.leadership.zookeeper.source import (  # noqa: PLC0415
                ZookeeperLeadership,
            )

            return ZookeeperLeadership(settings)
        case StaticSettings():
            from sidetier.leadership.static import StaticLeadership  # noqa: PLC0415

            return StaticLeadership(settings)
