"""Configuration of an example, drawn once before it begins."""

from dataclasses import dataclass
from typing import Literal

from hypothesis import strategies as st

MANY_FILES = 20_000
MANY_BYTES = 1 << 40
FLOOR = 1 << 20
"""Free bytes below which pins are released."""


@dataclass(frozen=True, slots=True)
class World:
    """Number of partitions and of log dirs per broker, and the configuration of the sidecars.

    `attempts` is the number of attempts of a request below the engine. With `local_retention`, the
    sidecars delete every closed segment that is archived. With `early`, they store parts of active
    segments.
    """

    partitions: int = 1
    log_dirs: int = 1
    spool: bool = False
    max_files: int = MANY_FILES
    max_deleted_bytes: int = MANY_BYTES
    offset_reset: Literal["earliest", "latest"] = "earliest"
    on_gap: Literal["step_over", "halt"] = "step_over"
    attempts: int = 1
    local_retention: bool = False
    early: bool = False

    @property
    def pins_everything(self) -> bool:
        """Whether no bound of open files can keep a segment from being pinned."""
        return self.max_files == MANY_FILES


WORLDS = st.builds(
    World,
    partitions=st.sampled_from([1, 2]),
    log_dirs=st.sampled_from([1, 2]),
    spool=st.booleans(),
    max_files=st.sampled_from([MANY_FILES, MANY_FILES, 6]),
    max_deleted_bytes=st.sampled_from([MANY_BYTES, MANY_BYTES, 150]),
    offset_reset=st.sampled_from(["earliest", "earliest", "latest"]),
    on_gap=st.sampled_from(["step_over", "halt"]),
    attempts=st.sampled_from([1, 3]),
    early=st.booleans(),
)
