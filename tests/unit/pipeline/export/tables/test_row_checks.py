"""Rows that tables refuse, as measured with Hudi 1.2 on Spark 3.5."""

from typing import Final

import pyarrow as pa
import pytest

from sidetier.pipeline.export.sinks.tables.row_checks import (
    PartitionPaths,
    RecordKey,
    RowCheck,
    hudi_checks,
    hudi_paths,
    iceberg_checks,
    identity_fields,
)

FIELD: Final = "hoodie.datasource.write.partitionpath.field"
HIVE: Final = "hoodie.datasource.write.hive_style_partitioning"
ENCODED: Final = "hoodie.datasource.write.partitionpath.urlencode"
GENERATOR: Final = "hoodie.datasource.write.keygenerator.class"

SAFE: Final = (
    "de",
    "a/b",
    "2026/11/21",
    " ",
    "a b",
    "*",
    "a\\b",
    "a?b",
    "a#b",
    "{a}",
    "a=b",
    "a%b",
)
OUTSIDE: Final = ("..", ".", "a/../b", "../x", "s3://x/y", "file:/tmp/x")
"""Hudi commits these records, and no reader finds them."""
LOST: Final = ("a//b", "a/", "/", "/abs")
"""Hudi commits these records, and readers find none of them, or another value."""
REFUSED: Final = ("a:b", "x\0y", "x\ny", "n" * 256, "\u00e9" * 128)
"""Hudi refuses the commit, or some store does."""
CHANGED: Final = ("%2e%2e", "a%41")
"""Hudi's readers decode them."""
EVERY: Final = (*SAFE, *OUTSIDE, *LOST, *REFUSED, *CHANGED, ".hoodie", ".hoodie/x")
LONG: Final = ("n" * 256, "\u00e9" * 128)


def hudi(**more: str) -> PartitionPaths:
    given = {"hive": HIVE, "encoded": ENCODED}
    paths = hudi_paths({FIELD: "to", **{given[name]: value for name, value in more.items()}})
    assert paths is not None
    return paths


def unfit(paths: RowCheck) -> set[str]:
    columns = {"to": pa.array([*EVERY, None, ""])}
    return {EVERY[misfit.row] for misfit in paths.misfits(columns)}


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (hudi(), {*OUTSIDE, *LOST, *REFUSED, *CHANGED, ".hoodie", ".hoodie/x"}),
        (
            hudi(hive="true"),
            {*OUTSIDE, *LOST, *REFUSED, *CHANGED} - {"..", ".", "/abs", "../x"},
        ),
        (hudi(encoded="TRUE"), {"..", ".", ".hoodie", *LONG}),
        (hudi(encoded="true", hive="true"), {*LONG}),
        (iceberg_checks(["to"])[0], {*LONG}),
    ],
)
def test_values_that_lead_elsewhere_do_not_fit(paths: RowCheck, expected: set[str]) -> None:
    assert unfit(paths) == expected


def test_reason_names_the_field_and_the_value() -> None:
    paths = PartitionPaths(("value.to",), named=False, form="plain")
    values = pa.array([{"to": "ok"}, None, {"to": ".."}, {"to": "x" * 300}])
    first, second = paths.misfits({"value": values})
    assert first.row == 2
    assert first.reason.startswith("field value.to is '..', which can be no directory of the table")
    assert second.row == 3
    assert len(second.reason) < 200


def test_fields_of_other_types_and_unknown_fields_are_left_to_the_table() -> None:
    paths = PartitionPaths(("id", "none", "to.x", "id.x"), named=False, form="plain")
    columns = {"id": pa.array([1, 2]), "to": pa.array([{"y": ".."}, None])}
    assert not list(paths.misfits(columns))


def test_values_of_a_field_whose_name_differs_in_case_are_checked() -> None:
    [found] = PartitionPaths(("value.to",), named=False, form="plain").misfits(
        {"Value": pa.array([{"TO": ".."}])}
    )
    assert found.row == 0


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, None),
        ({FIELD: ""}, None),
        ({FIELD: "a, value.b"}, ("a", "value.b")),
        ({"hoodie.table.partition.fields": "a"}, ("a",)),
        ({FIELD: "a", "hoodie.table.partition.fields": "b"}, ("a",)),
        ({FIELD: "a:simple,at:timestamp", GENERATOR: "org.apache.hudi.CustomKeyGenerator"}, ("a",)),
        ({FIELD: "at", GENERATOR: "org.apache.hudi.keygen.TimestampBasedKeyGenerator"}, None),
        ({FIELD: "at", GENERATOR: "org.apache.hudi.keygen.NonpartitionedKeyGenerator"}, None),
        ({FIELD: "at", "hoodie.table.keygenerator.type": "NON_PARTITION"}, None),
    ],
)
def test_fields_of_a_hudi_table_are_known(
    options: dict[str, str], fields: tuple[str, ...] | None
) -> None:
    paths = hudi_paths(options)
    assert (None if paths is None else paths.fields) == fields


def test_fields_of_a_new_iceberg_table_are_known() -> None:
    assert identity_fields(
        "days(timestamp), `country`, truncate(3, x), bucket(4, id), value.to"
    ) == [
        "country",
        "value.to",
    ]
    assert iceberg_checks(identity_fields("")) == ()


@pytest.mark.parametrize(
    ("key", "unfit_rows"),
    [
        (RecordKey(("id",)), [1, 2]),
        (RecordKey(("id", "other")), [2]),
        (RecordKey(("id", "other"), needs_all=True), [1, 2]),
        (RecordKey(("number",)), [1]),
        (RecordKey(("id", "offset")), []),
        (RecordKey(("id", "unknown")), []),
        (RecordKey(("value.x", "id")), [2]),
        (RecordKey(("value.x",)), [0, 2]),
    ],
)
def test_row_without_a_key_does_not_fit(key: RecordKey, unfit_rows: list[int]) -> None:
    columns = {
        "id": pa.array(["a", "", None, "b"]),
        "other": pa.array(["x", "x", "", "x"]),
        "number": pa.array([0, None, 1, 2]),
        "offset": pa.array([0, 1, 2, 3]),
        "value": pa.array([{"x": None}, {"x": 1}, None, {"x": 2}]),
    }
    assert [misfit.row for misfit in key.misfits(columns)] == unfit_rows


KEY: Final = "hoodie.datasource.write.recordkey.field"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ()),
        ({KEY: "id, x"}, (RecordKey(("id", "x")),)),
        (
            {KEY: "id", "hoodie.datasource.write.operation": "bulk_insert"},
            (RecordKey(("id",), needs_all=True),),
        ),
        ({"hoodie.table.recordkey.fields": "id", FIELD: "to"}, (hudi(), RecordKey(("id",)))),
    ],
)
def test_requirements_of_a_hudi_table_are_known(
    options: dict[str, str], expected: tuple[RowCheck, ...]
) -> None:
    assert hudi_checks(options) == expected
