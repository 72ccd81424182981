"""The configuration: one frozen model for each part. Unknown keys are refused.

Durations are in seconds and sizes in bytes; both accept a unit (`30s`, `5m`, `16MiB`).
"""

from typing import Annotated

from pydantic import Field

from sidetier.config.base import Part
from sidetier.config.cluster import BrokerConfig, ClusterConfig
from sidetier.config.leadership import LeadershipConfig
from sidetier.config.storage import StorageConfig
from sidetier.config.telemetry import HttpConfig, LogConfig
from sidetier.config.topics import TopicsConfig
from sidetier.config.types import AbsolutePath
from sidetier.config.uploader import UploaderConfig


class Config(Part):
    """The whole configuration of one sidecar."""

    cluster: ClusterConfig = Field(description="Which cluster this is.")
    log_dirs: Annotated[tuple[AbsolutePath, ...], Field(strict=False)] = Field(
        min_length=1,
        description="The broker's log.dirs, every one of them. A pattern (*, ?) stands for what it "
        "matches on this host.",
    )
    broker: BrokerConfig = Field(default=BrokerConfig(), description="This host's own broker.")
    topics: TopicsConfig = Field(default=TopicsConfig(), description="Which topics are archived.")
    leadership: LeadershipConfig = Field(
        default=LeadershipConfig(), description="How leadership is known."
    )
    storage: StorageConfig = Field(description="Where segments are stored.")
    uploader: UploaderConfig = Field(default=UploaderConfig(), description="How the daemon works.")
    http: HttpConfig = Field(default=HttpConfig(), description="Metrics, health and status.")
    log: LogConfig = Field(default=LogConfig(), description="The sidecar's own log.")
