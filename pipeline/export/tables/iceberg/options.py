"""The options of an export into Iceberg."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sidetier.pipeline.export.tables.progress import PREFIX
from sidetier.segments.errors import ConfigurationError

_SNAPSHOT: Final = "snapshot-property."
_REFUSED: Final = ("isolation-level", "validate-from-snapshot-id", "branch")


@dataclass(frozen=True, slots=True)
class IcebergOptions:
    """One table, and how it is made and written.

    Attributes:
        table: its name, with that of its catalog: `lake.db.orders`.
        partitioned_by: what stands in PARTITIONED BY where the table is made: `days(timestamp)`.
        properties: of the table where it is made: `write.format.default` and the like.
        adds_columns: the table gets the columns that rows have and it does not.
        write: options of Spark's writer: `target-file-size-bytes`, `snapshot-property.*`.
    """

    table: str
    partitioned_by: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    write: Mapping[str, str] = field(default_factory=dict)
    adds_columns: bool = False

    def __post_init__(self) -> None:
        if not self.table.strip():
            raise ConfigurationError("the name of the Iceberg table is missing")
        for name in self.write:
            if name in _REFUSED or name.startswith(f"{_SNAPSHOT}{PREFIX}"):
                raise ConfigurationError(f"{name} is set by the export itself")
