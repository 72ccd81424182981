"""Catalogs that an export refuses because they lose one of two concurrent commits."""

import pytest

from sidetier.pipeline.export.sinks.tables.iceberg import catalog_of, require_one_step
from sidetier.segments.errors import ConfigurationError

HADOOP = "org.apache.iceberg.hadoop.HadoopCatalog"
DYNAMO = "org.apache.iceberg.aws.dynamodb.DynamoDbLockManager"
IN_MEMORY = "org.apache.iceberg.util.LockManagers$InMemoryLockManager"


def require(default_scheme: str = "file", /, **named: str) -> None:
    settings = {
        f"spark.sql.catalog.lake.{name.replace('_', '-')}": text for name, text in named.items()
    }
    require_one_step("lake", settings.get, default_scheme)


@pytest.mark.parametrize(
    "named",
    [
        {"type": "hadoop", "warehouse": "s3a://lake/warehouse"},
        {"type": "Hadoop", "warehouse": "S3://lake/warehouse"},
        {"catalog_impl": HADOOP, "warehouse": "gs://lake/warehouse"},
        {"type": "hadoop", "warehouse": "s3a://lake", "lock_impl": IN_MEMORY},
        {"type": "hadoop", "warehouse": "unheard-of://lake"},
    ],
)
def test_catalog_without_atomic_rename_is_refused(named: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"\(rest, jdbc, glue, hive\)") as caught:
        require(**named)
    assert "spark.sql.catalog.lake.lock-impl" in str(caught.value)


def test_warehouse_without_a_scheme_is_in_the_default_file_system() -> None:
    require("hdfs", type="hadoop", warehouse="/lake")
    with pytest.raises(ConfigurationError, match="on s3a://"):
        require("s3a", type="hadoop", warehouse="/lake")


@pytest.mark.parametrize(
    "named",
    [
        {"type": "rest", "warehouse": "s3a://lake"},
        {"warehouse": "s3a://lake"},  # hive
        {"type": "jdbc", "warehouse": "s3://lake"},
        {"catalog_impl": "org.example.Catalog", "warehouse": "s3a://lake"},
        {"type": "hadoop", "warehouse": "hdfs://name:8020/lake"},
        {"type": "hadoop", "warehouse": "/srv/lake"},
        {"type": "hadoop", "warehouse": "s3a://lake", "lock_impl": DYNAMO},
    ],
)
def test_catalog_that_isolates_writers_is_accepted(named: dict[str, str]) -> None:
    require(**named)


@pytest.mark.parametrize(
    ("table", "catalog"),
    [("lake.db.orders", "lake"), ("`my.lake`.db.orders", "my.lake"), ("orders", "orders")],
)
def test_catalog_is_found_in_the_name_of_a_table(table: str, catalog: str) -> None:
    assert catalog_of(table) == catalog
