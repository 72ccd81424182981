"""Iceberg exports of every type, and while producers change their schema, on a real Spark 4.0."""

import json
from pathlib import Path

import pytest

from tests.harness import table_jobs
from tests.harness.every_type import check_every_type, in_spark
from tests.harness.schema_changes import ChangingTopic, Row, check_rows_of_each_version
from tests.harness.schema_registry import serving
from tests.harness.spark import SparkDriver
from tests.harness.table_exports import Said, exported

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

TABLE = "lake.db.changing"


def test_columns_are_added_and_have_each_type_and_version(
    spark40: SparkDriver, tmp_path: Path
) -> None:
    with serving() as registry:
        topic = ChangingTopic(tmp_path, registry)

        def run() -> Said:
            return exported(spark40, ["iceberg", "orders", "--table", TABLE, *topic.options])

        def rows() -> list[Row]:
            every = "to_json(struct(*), map('ignoreNullFields', 'false'))"
            text = f"SELECT {every} AS row FROM {TABLE} ORDER BY offset"  # noqa: S608
            return [json.loads(one["row"]) for one in spark40.call(table_jobs.sql, text=text)]

        check_rows_of_each_version(topic, run, rows)

    types = f"{TABLE}_types"
    spark40.call(table_jobs.sql, text="SET spark.sql.session.timeZone=America/New_York")
    try:
        check_every_type(
            tmp_path / "types",
            lambda *options: exported(spark40, ["iceberg", "orders", "--table", types, *options]),
            lambda: spark40.call(table_jobs.sql, text=in_spark(types)),
        )
    finally:
        spark40.call(table_jobs.sql, text="RESET spark.sql.session.timeZone")
