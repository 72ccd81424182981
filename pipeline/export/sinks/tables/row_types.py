"""The types of rows beside the types of the table that gets them. No access to a table.

Spark and Hive compare the names of columns, and of members of structs, without case. Iceberg and
Hudi compare them with case when a table gets new columns. A field `ID` beside a column `id` would
become a second column, and no query of Spark could name either of them any more. So rows take the
names of the table, and a name that could be either of two is refused before the table changes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- the usual name
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_AVRO_NAME: Final = re.compile(r"[^\W\d]\w*")
_UTC: Final = frozenset({"UTC", "GMT", "Z", "+00:00", "Etc/UTC"})


class UnfitRowsError(Exception):
    """The rows do not fit the table. The message names the field."""


@dataclass(frozen=True, slots=True)
class Matching:
    """How a session matches rows with a table.

    Attributes:
        by_case: whether names that differ only in case are different names
            (`spark.sql.caseSensitive`).
        zone: time zone of the session.
    """

    by_case: bool = False
    zone: str = "UTC"

    def key(self, name: str) -> str:
        """Return the form in which names are compared."""
        return name if self.by_case else name.lower()

    def require_distinct(self, kind: DataType, owner: str = "the rows", path: str = "") -> None:
        """Refuse two fields of a struct, at any depth, whose names differ only in case.

        Raises:
            UnfitRowsError: there are such fields.
        """
        for name, inner in _parts(kind):
            self.require_distinct(inner, owner, _joined(path, name))
        if not isinstance(kind, StructType):
            return
        seen: dict[str, str] = {}
        for name in kind.names:
            other = seen.setdefault(self.key(name), name)
            if other is not name:
                raise UnfitRowsError(
                    f"{owner} have the fields {_joined(path, other)} and {_joined(path, name)}, "
                    "which Spark cannot tell apart: rename one, leave one out with a schema "
                    "(--value-schema), or set spark.sql.caseSensitive=true"
                )

    def named_as(self, table: StructType, rows: StructType) -> StructType:
        """Return the type of rows with the names of the table, at any depth.

        Fields that the table does not have keep their names.

        Raises:
            UnfitRowsError: a name is ambiguous, or a value would change its meaning.
        """
        self.require_distinct(table, "the columns of the table")
        self.require_distinct(rows)
        return self._named_struct(table, rows, "")

    def _named_struct(self, table: DataType | None, rows: StructType, path: str) -> StructType:
        columns = table.fields if isinstance(table, StructType) else []
        known = {self.key(column.name): column for column in columns}
        fields = []
        for field in rows.fields:
            column = known.get(self.key(field.name))
            of_table = None if column is None else column.dataType
            kind = self._named_as(of_table, field.dataType, _joined(path, field.name))
            name = field.name if column is None else column.name
            fields.append(StructField(name, kind, field.nullable))
        return StructType(fields)

    def _named_as(self, table: DataType | None, rows: DataType, path: str) -> DataType:
        if isinstance(rows, StructType):
            return self._named_struct(table, rows, path)
        if isinstance(rows, ArrayType):
            item = table.elementType if isinstance(table, ArrayType) else None
            return ArrayType(self._named_as(item, rows.elementType, f"{path}[]"), rows.containsNull)
        if isinstance(rows, MapType):
            value = table.valueType if isinstance(table, MapType) else None
            kind = self._named_as(value, rows.valueType, f"{path}.*")
            return MapType(rows.keyType, kind, rows.valueContainsNull)
        if isinstance(rows, TimestampNTZType) and isinstance(table, TimestampType):
            if self.zone not in _UTC:
                raise UnfitRowsError(
                    f"{path} is a local time, and the table's column is an instant "
                    f"(TIMESTAMP): in the session's time zone {self.zone} the values would shift. "
                    "Export into another table, or set spark.sql.session.timeZone=UTC, which "
                    "stores the local time as that of UTC"
                )
            return table
        return rows


def require_avro_names(kind: DataType, path: str = "") -> None:
    """Refuse names that Avro does not have, at any depth. Hudi keeps its schema in Avro.

    Raises:
        UnfitRowsError: there is such a name.
    """
    for name, inner in _parts(kind):
        field = _joined(path, name)
        if isinstance(kind, StructType) and not _AVRO_NAME.fullmatch(name):
            raise UnfitRowsError(
                f"Hudi has no column of the name {field!r}: a name has letters, digits and _, and "
                "does not begin with a digit. Leave the field out with a schema (--value-schema)"
            )
        require_avro_names(inner, field)


def matching_of(spark: SparkSession) -> Matching:
    """Return how this session matches rows with a table."""
    by_case = (spark.conf.get("spark.sql.caseSensitive", None) or "false").lower() == "true"
    return Matching(by_case, spark.conf.get("spark.sql.session.timeZone", None) or "")


def filled(table: StructType, rows: StructType, path: str = "") -> StructType:
    """Return the type of rows with all fields of the table, in the table's order.

    Args:
        table: the type of the table, which may have fields that rows do not have.
        rows: the type of rows, with the names of the table.
        path: name of the struct, for errors; empty for the whole row.

    Raises:
        UnfitRowsError: rows have a field that the table does not have, or the table requires a
            field that rows do not have.
    """
    own = {field.name: field for field in rows.fields}
    if more := [name for name in own if name not in table.names]:
        raise UnfitRowsError(
            f"the table has no column for the field {_joined(path, more[0])}: add it to the table, "
            "or leave the field out with a schema (--value-schema)"
        )
    fields = []
    for column in table.fields:
        inner = _joined(path, column.name)
        if column.name in own:
            field = own[column.name]
            kind = _filled(column.dataType, field.dataType, inner)
            fields.append(StructField(column.name, kind, field.nullable))
        elif column.nullable:
            fields.append(column)
        else:
            raise UnfitRowsError(
                f"the column {inner} of the table may not be null, and the rows do not have it: "
                "let it be null (ALTER TABLE ... ALTER COLUMN ... DROP NOT NULL)"
            )
    return StructType(fields)


def _filled(table: DataType, rows: DataType, path: str) -> DataType:
    if isinstance(table, StructType) and isinstance(rows, StructType):
        return filled(table, rows, path)
    if isinstance(table, ArrayType) and isinstance(rows, ArrayType):
        kind = _filled(table.elementType, rows.elementType, f"{path}[]")
        return ArrayType(kind, rows.containsNull)
    if isinstance(table, MapType) and isinstance(rows, MapType):
        kind = _filled(table.valueType, rows.valueType, f"{path}.*")
        return MapType(rows.keyType, kind, rows.valueContainsNull)
    return rows


def converted(frame: DataFrame, by: Matching, kind: StructType) -> DataFrame:
    """Return the rows as this type: with its names, in its order, and null for its other fields."""
    if frame.schema == kind:
        return frame
    columns = {by.key(field.name): field for field in frame.schema.fields}
    return frame.select(
        *(
            _converted(_column(field.name), columns.get(by.key(field.name)), field, by)
            for field in kind.fields
        )
    )


def _converted(
    value: Column, field: StructField | None, wanted: StructField, by: Matching
) -> Column:
    if field is None:
        return F.lit(None).cast(wanted.dataType).alias(wanted.name)
    return _as(value, field.dataType, wanted.dataType, by).alias(wanted.name)


def _as(value: Column, kind: DataType, wanted: DataType, by: Matching) -> Column:
    if kind == wanted:
        return value
    if isinstance(kind, StructType) and isinstance(wanted, StructType):
        members = {by.key(field.name): field for field in kind.fields}
        struct = F.struct(
            *(
                _converted(value.getField(field.name), members.get(by.key(field.name)), field, by)
                for field in wanted.fields
            )
        )
        return F.when(value.isNotNull(), struct)
    if isinstance(kind, ArrayType) and isinstance(wanted, ArrayType):
        item, wanted_item = kind.elementType, wanted.elementType
        return F.transform(value, lambda each: _as(each, item, wanted_item, by))
    if isinstance(kind, MapType) and isinstance(wanted, MapType):
        inner, wanted_inner = kind.valueType, wanted.valueType
        return F.transform_values(value, lambda _key, each: _as(each, inner, wanted_inner, by))
    return value.cast(wanted)


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _parts(kind: DataType) -> Iterator[tuple[str, DataType]]:
    if isinstance(kind, StructType):
        yield from ((field.name, field.dataType) for field in kind.fields)
    elif isinstance(kind, ArrayType):
        yield "[]", kind.elementType
    elif isinstance(kind, MapType):
        yield "*", kind.valueType


def _joined(path: str, name: str) -> str:
    return name if not path else f"{path}{name}" if name == "[]" else f"{path}.{name}"
