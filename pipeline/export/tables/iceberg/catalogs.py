"""Whether a catalog keeps two writers apart: an export's commit rests on that.

Catalogs in a database or a service change a table's metadata in one step, and refuse who comes too
late. The catalog `hadoop` renames a file for it. An object store has no renaming: Hadoop looks
whether the file is there, copies, and deletes, so that of two commits at once both succeed, and the
second takes the place of the first.
"""

from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from sidetier.segments.errors import ConfigurationError

Setting = Callable[[str], str | None]
"""A setting of Spark's session by its name; None where nobody has set it."""

_HADOOP: Final = ("hadoop", "org.apache.iceberg.hadoop.hadoopcatalog")
_RENAMES: Final = ("file", "hdfs", "viewfs", "abfs", "abfss")
_WITHIN_ONE_PROCESS: Final = "InMemoryLockManager"


def catalog_settings(catalog: str) -> str:
    """What the names of its settings begin with."""
    return f"spark.sql.catalog.{catalog}"


def catalog_of(table: str) -> str:
    """The first part of a table's name, which may be in backquotes."""
    if table.startswith("`"):
        return table[1:].partition("`")[0]
    return table.partition(".")[0]


def require_one_step(catalog: str, setting: Setting, default_scheme: str) -> None:
    """Refuse a catalog that renames files where that is not one step, and nothing locks.

    Args:
        catalog: its name.
        setting: of the session.
        default_scheme: of a warehouse that is named without one.

    Raises:
        ConfigurationError: says what to do.
    """
    prefix = catalog_settings(catalog)
    kind = setting(f"{prefix}.catalog-impl") or setting(f"{prefix}.type") or ""
    scheme = urlsplit(setting(f"{prefix}.warehouse") or "").scheme.lower() or default_scheme
    if kind.lower() not in _HADOOP:
        return
    lock = setting(f"{prefix}.lock-impl") or _WITHIN_ONE_PROCESS
    if scheme in _RENAMES or not lock.endswith(_WITHIN_ONE_PROCESS):
        return
    raise ConfigurationError(
        f"the catalog {catalog} is of the type hadoop, which commits by renaming a file: on "
        f"{scheme}:// that is no single step, and of two commits at once one is lost. Use a "
        "catalog that commits in one step (rest, jdbc, glue, hive), or name a lock that all "
        f"writers share as {prefix}.lock-impl"
    )
