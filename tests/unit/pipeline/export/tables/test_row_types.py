"""Rows take the names of the table's columns, or are refused before the table changes."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sidetier.pipeline.export.sinks.tables.row_types import (
    Matching,
    UnfitRowsError,
    filled,
    require_avro_names,
)


def struct(**fields: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])  # type: ignore[arg-type]


TEXT, NUMBER = StringType(), IntegerType()


def test_rows_take_the_names_of_the_table_at_any_depth() -> None:
    table = struct(
        orderid=NUMBER,
        at=struct(zip=TEXT),
        all=ArrayType(struct(x=TEXT)),
        by=MapType(TEXT, struct(y=TEXT)),
    )
    rows = struct(
        orderId=NUMBER,
        At=struct(ZIP=TEXT, Street=TEXT),
        ALL=ArrayType(struct(X=TEXT)),
        By=MapType(TEXT, struct(Y=TEXT)),
        New=TEXT,
    )
    assert Matching().named_as(table, rows) == struct(
        orderid=NUMBER,
        at=struct(zip=TEXT, Street=TEXT),
        all=ArrayType(struct(x=TEXT)),
        by=MapType(TEXT, struct(y=TEXT)),
        New=TEXT,
    )


def test_names_that_differ_only_in_case_are_equal_unless_the_session_tells_them_apart() -> None:
    table, rows = struct(id=NUMBER), struct(ID=NUMBER)
    assert Matching().named_as(table, rows) == table
    assert Matching(by_case=True).named_as(table, rows) == rows


@pytest.mark.parametrize(
    ("table", "rows", "said"),
    [
        (struct(), struct(id=TEXT, ID=TEXT), "the rows have the fields id and ID"),
        (struct(), struct(v=struct(a=TEXT, A=TEXT)), "the rows have the fields v.a and v.A"),
        (
            struct(),
            struct(v=ArrayType(struct(a=TEXT, A=TEXT))),
            r"the rows have the fields v\[\].a and v\[\].A",
        ),
        (struct(id=TEXT, ID=TEXT), struct(), "columns of the table have the fields id and ID"),
    ],
)
def test_ambiguous_name_is_refused(table: StructType, rows: StructType, said: str) -> None:
    with pytest.raises(UnfitRowsError, match=said):
        Matching().named_as(table, rows)
    assert Matching(by_case=True).named_as(table, rows) == rows


def test_local_time_is_not_stored_as_an_instant_that_depends_on_the_zone() -> None:
    table, rows = struct(at=TimestampType()), struct(At=TimestampNTZType())
    assert Matching(zone="UTC").named_as(table, rows) == table
    with pytest.raises(UnfitRowsError, match=r"At is a local time.*Europe/Berlin"):
        Matching(zone="Europe/Berlin").named_as(table, rows)


def test_columns_that_rows_do_not_have_are_null() -> None:
    table = struct(id=NUMBER, at=struct(zip=TEXT, street=TEXT), all=ArrayType(struct(x=TEXT)))
    rows = struct(all=ArrayType(struct()), at=struct(street=TEXT))
    assert filled(table, rows) == table


def test_rows_that_the_table_cannot_take_are_refused_by_name() -> None:
    with pytest.raises(UnfitRowsError, match=r"no column for the field at\.street"):
        filled(struct(at=struct(zip=TEXT)), struct(at=struct(zip=TEXT, street=TEXT)))
    required = StructType([StructField("id", NUMBER), StructField("note", TEXT, nullable=False)])
    with pytest.raises(UnfitRowsError, match="column note of the table may not be null"):
        filled(required, struct(id=NUMBER))


def test_names_that_hudi_cannot_have_are_refused_at_any_depth() -> None:
    require_avro_names(struct(_a1=ArrayType(struct(ä=TEXT))))
    with pytest.raises(UnfitRowsError, match=r"'value\.all\[\]\.a b'"):
        require_avro_names(struct(value=struct(all=ArrayType(struct(**{"a b": TEXT})))))
    with pytest.raises(UnfitRowsError, match="'9a'"):
        require_avro_names(struct(**{"9a": TEXT}))
