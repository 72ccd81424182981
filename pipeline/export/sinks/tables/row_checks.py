"""Rows that a table refuses, found before it is written.

A commit with one such row fails as a whole, and so does each later attempt. So these records do not
fit: they are dead letters, or the run names the first one.

*Directories of partitions*: Hudi writes the value of a partition field into the path of its files
as it is. A value such as `..` or `s3://other/place` leads out of the table: its records are in a
commit, and no reader finds them. Others (`a:b`, a zero byte, more than 255 bytes) end each commit
that has such a record. Iceberg escapes values, and only long ones fail.

*Record keys*: Hudi needs a key for each row. A tombstone has none if a field of its value is the
key.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import quote_plus

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sidetier.pipeline.export.sinks.files.names import escaped, why_no_path
from sidetier.pipeline.export.values.decoder import Misfit

_SHOWN: Final = 60


class RowCheck(Protocol):
    """Finds rows that a table refuses."""

    def misfits(self, columns: Mapping[str, pa.Array]) -> Iterator[Misfit]:
        """Yield the rows that do not fit. `columns` has all columns by name."""
        ...


@dataclass(frozen=True, slots=True)
class RecordKey:
    """The fields of a record's key, which must have values.

    Attributes:
        fields: columns, with dots before members of structs.
        needs_all: whether each field must have a value. Otherwise one is enough.
    """

    fields: tuple[str, ...]
    needs_all: bool = False

    def misfits(self, columns: Mapping[str, pa.Array]) -> Iterator[Misfit]:
        """Yield the rows whose key has no value. The table itself refuses an unknown field."""
        found = [_column(columns, path) for path in self.fields]
        known = [column for column in found if column is not None]
        if len(known) < len(found):
            return
        combine = np.logical_or if self.needs_all else np.logical_and
        empty = combine.reduce([_is_empty(column) for column in known])
        reason = f"the record key has no value in {', '.join(self.fields)}"
        for row in np.flatnonzero(empty):
            yield Misfit(int(row), reason)


def _is_empty(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which values are null, or the empty text."""
    empty = column.is_null()
    if _is_text(column.type):
        empty = pc.or_(empty, pc.fill_null(pc.equal(column, ""), True))  # noqa: FBT003
    mask: npt.NDArray[np.bool_] = empty.to_numpy(zero_copy_only=False)
    return mask


@dataclass(frozen=True, slots=True)
class PartitionPaths:
    """How the fields of rows become directories.

    Attributes:
        fields: columns, with dots before members of structs.
        named: whether a directory is `field=value`.
        form: how a value is written: `plain` and `escaped` in Hudi, `url` in Iceberg.
    """

    fields: tuple[str, ...]
    named: bool
    form: str

    def misfits(self, columns: Mapping[str, pa.Array]) -> Iterator[Misfit]:
        """Check texts only: each distinct value once."""
        for path in self.fields:
            column = _column(columns, path)
            if column is None or not _is_text(column.type):
                continue  # numbers, times and booleans are safe; the table names an unknown field
            values = column.dictionary_encode()
            reasons = {
                code: reason
                for code, value in enumerate(values.dictionary.to_pylist())
                if (reason := self._reason(path, value)) is not None
            }
            if reasons:
                for row, code in enumerate(values.indices.to_pylist()):
                    if code in reasons:
                        yield Misfit(row, reasons[code])

    def _reason(self, path: str, value: str) -> str | None:
        if not value:
            return None  # as null, it becomes a directory with a fixed name
        why = self._why_not(path.rpartition(".")[2], value)
        if why is None:
            return None
        shown = f"{value[:_SHOWN]!r}{'...' if len(value) > _SHOWN else ''}"
        return f"field {path} is {shown}, which can be no directory of the table: {why}"

    def _why_not(self, name: str, value: str) -> str | None:
        text = _WRITTEN[self.form](value)
        if not self.named and text.split("/")[0] == ".hoodie":
            return "the table's own state is there"
        if self.form == "plain" and (found := _READ_DIFFERENTLY.search(text)):
            return f"{found[0]} has another meaning in a path"
        return why_no_path(f"{name}={text}" if self.named else text)


_READ_DIFFERENTLY: Final = re.compile(r":|%[0-9A-Fa-f]{2}")
"""What Hadoop refuses or takes as the end of a URL's scheme; and what Hudi's readers decode."""


def _url(value: str) -> str:
    """Escape as Java's `URLEncoder`."""
    return quote_plus(value, safe="*").replace("~", "%7E")


def _hive(value: str) -> str:
    """Escape as Hudi's `PartitionPathEncodeUtils`, which does not know `.` and `..`."""
    return value if value in {".", ".."} else escaped(value)


_WRITTEN: Final[Mapping[str, Callable[[str], str]]] = {"plain": str, "escaped": _hive, "url": _url}


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _column(columns: Mapping[str, pa.Array], path: str) -> pa.Array | None:
    """Return the column of a table's field: names that differ only in case are the same name."""
    name, *rest = path.lower().split(".")
    column = next((column for known, column in columns.items() if known.lower() == name), None)
    for step in rest:
        if column is None or not pa.types.is_struct(column.type):
            return None
        names = [column.type.field(at).name.lower() for at in range(column.type.num_fields)]
        column = pc.struct_field(column, names.index(step)) if step in names else None
    return column


def iceberg_checks(fields: Iterable[str]) -> tuple[RowCheck, ...]:
    """Return what an Iceberg table requires of rows. `fields` partition it without a transform."""
    chosen = tuple(fields)
    return (PartitionPaths(chosen, named=True, form="url"),) if chosen else ()


def identity_fields(partitioned_by: str) -> list[str]:
    """Return the fields in the content of PARTITIONED BY that are not transformed."""
    parts = re.sub(r"\([^()]*\)", "()", partitioned_by).split(",")
    names = [part.strip().replace("`", "") for part in parts]
    return [name for name in names if name and not name.endswith("()")]


_FIELDS: Final = ("hoodie.datasource.write.partitionpath.field", "hoodie.table.partition.fields")
_KEYS: Final = ("hoodie.datasource.write.recordkey.field", "hoodie.table.recordkey.fields")
_OPERATION: Final = "hoodie.datasource.write.operation"
_NAMED: Final = "hoodie.datasource.write.hive_style_partitioning"
_ENCODED: Final = "hoodie.datasource.write.partitionpath.urlencode"
_GENERATORS: Final = (
    "hoodie.datasource.write.keygenerator.class",
    "hoodie.datasource.write.keygenerator.type",
    "hoodie.table.keygenerator.class",
    "hoodie.table.keygenerator.type",
)


def hudi_checks(options: Mapping[str, str]) -> tuple[RowCheck, ...]:
    """Return what a Hudi table requires of rows.

    Args:
        options: the options of the write, and the properties of a table that exists.
    """
    checks: list[RowCheck] = []
    if (paths := hudi_paths(options)) is not None:
        checks.append(paths)
    given = next((options[name] for name in _KEYS if options.get(name)), "")
    if key := tuple(field.strip() for field in given.split(",") if field.strip()):
        checks.append(RecordKey(key, options.get(_OPERATION) == "bulk_insert"))
    return tuple(checks)


def hudi_paths(options: Mapping[str, str]) -> PartitionPaths | None:
    """Return how a Hudi table makes directories; None if it makes none of values."""
    generator = next((options[name] for name in _GENERATORS if options.get(name)), "").upper()
    if "NON_PARTITION" in generator or "NONPARTITION" in generator or "TIMESTAMP" in generator:
        return None  # a time is formatted, whatever the value is
    given = next((options[name] for name in _FIELDS if options.get(name)), "")
    fields = [field.strip().partition(":") for field in given.split(",") if field.strip()]
    # With a CustomKeyGenerator, each field names its kind: `country:simple,at:timestamp`.
    chosen = tuple(name for name, _, kind in fields if kind.lower() in {"", "simple"})
    if not chosen:
        return None
    form = "escaped" if _is_true(options, _ENCODED) else "plain"
    return PartitionPaths(chosen, _is_true(options, _NAMED), form)


def _is_true(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "").strip().lower() == "true"
