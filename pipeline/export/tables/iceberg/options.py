"""Options of an export to Iceberg."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sidetier.pipeline.export.tables.progress import PREFIX
from sidetier.segments.errors import ConfigurationError

_SNAPSHOT: Final = "snapshot-property."
_REFUSED: Final = ("isolation-level", "validate-from-snapshot-id", "branch")


@dataclass(frozen=True, slots=True)
class IcebergOptions:
    """One table, and how it is created and written.

    Attributes:
        table: name of the table, with that of its catalog: `lake.db.orders`.
        partitioned_by: content of PARTITIONED BY if the table is created: `days(timestamp)`.
        properties: table properties if the table is created: `write.format.default` and others.
        write: options of Spark's writer: `target-file-size-bytes`, `snapshot-property.*`.
        adds_columns: whether the table gets columns of rows that it does not have.
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
