"""Options of tables in Spark's catalog, with the properties that Spark 4.0 passes."""

import pytest

from sidetier.pipeline.spark.columns import spark_schema
from sidetier.pipeline.spark.source import SidetierDataSource, StreamReader
from sidetier.pipeline.spark.table_options import is_table, options_of, with_options
from sidetier.segments.errors import ConfigurationError

OPTIONS = {
    "tiered.storage.url": "s3://bucket/prefix",
    "tiered.storage.cluster.name": "prod-a",
    "subscribe": "orders",
    "columns": "offset,key",
}
MADE = {
    **OPTIONS,
    **{f"option.{name}": value for name, value in OPTIONS.items()},
    "provider": "sidetier",
    "owner": "root",
    "comment": "last month",
    "location": "file:/warehouse/t",
    "path": "file:/warehouse/t",
    "team.property": "x",
}
"""The options that Spark 4.0.0 passes for CREATE TABLE with COMMENT, LOCATION and TBLPROPERTIES."""


def test_only_the_given_options_count_when_a_table_is_created() -> None:
    assert is_table(MADE)
    assert options_of(MADE) == OPTIONS
    assert not is_table(OPTIONS)
    assert options_of(OPTIONS) == OPTIONS


def test_table_is_read_with_the_options_of_its_creation() -> None:
    schema = SidetierDataSource(MADE).schema()
    assert schema.names == ["offset", "key"]
    assert options_of({}, schema) == OPTIONS
    assert SidetierDataSource({}).reader(schema) is not None
    assert isinstance(SidetierDataSource({}).streamReader(schema), StreamReader)


def test_options_of_a_query_override_those_of_the_table() -> None:
    schema = with_options(spark_schema(["offset"]), OPTIONS)
    assert options_of({"Subscribe": "payments"}, schema) == {
        "tiered.storage.url": "s3://bucket/prefix",
        "tiered.storage.cluster.name": "prod-a",
        "columns": "offset,key",
        "Subscribe": "payments",
    }


def test_read_without_a_table_has_no_options_in_its_schema() -> None:
    schema = SidetierDataSource(OPTIONS).schema()
    assert all(not column.metadata for column in schema.fields)


def test_the_error_for_a_table_with_columns_names_the_remedy() -> None:
    with pytest.raises(ConfigurationError, match="create the table without columns"):
        SidetierDataSource({}).reader(spark_schema(["offset"]))


def test_error_names_the_wrong_option_of_a_table() -> None:
    with pytest.raises(ConfigurationError, match="subscrib: there is no such option"):
        SidetierDataSource({**MADE, "option.subscrib": "orders"}).schema()
