"""Options of a table in Spark's catalog: `CREATE TABLE t USING sidetier OPTIONS (...)`.

When the table is made, Spark hands each option out twice, under its name and as `option.<name>`,
among the table's properties (`provider`, `owner`, `location`, those of TBLPROPERTIES). When the
table is read, it hands a source in Python none of them (4.0): only the columns of the catalog, with
their metadata. So the options are kept there. No secret is among them, only where each is found.
"""

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from sidetier.segments.errors import ConfigurationError

_PREFIX: Final = "option."
_METADATA: Final = "sidetier.options"


def options_of(options: Mapping[str, str], schema: StructType | None = None) -> dict[str, str]:
    """What the user has given: of a table's properties those that are options, and of a table
    that is read what `with_options` has kept in its columns. What comes beside that
    (`SELECT ... FROM t WITH (...)`) takes its place.

    Raises:
        ConfigurationError: there is none, as of a table that was made with columns of its own.
    """
    if is_table(options):
        return {
            name[len(_PREFIX) :]: value
            for name, value in options.items()
            if name.lower().startswith(_PREFIX)
        }
    kept = {} if schema is None else _kept(schema)
    given = {name.lower() for name in options}
    found = {name: value for name, value in kept.items() if name.lower() not in given}
    if not found and not options:
        raise ConfigurationError(
            "no options are given. Spark hands a source in Python none of the options of a table: "
            "make the table without columns (CREATE TABLE t USING sidetier OPTIONS (...), the "
            "option columns names some), or read it WITH ('subscribe'='orders', ...)"
        )
    return {**found, **options}


def is_table(options: Mapping[str, str]) -> bool:
    """Whether these are the properties of a table that is being made."""
    return any(name.lower().startswith(_PREFIX) for name in options)


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The columns of a table, with its options in the metadata of the first."""
    first, *rest = schema.fields
    metadata = {_METADATA: json.dumps(dict(options), sort_keys=True)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *rest])


def _kept(schema: StructType) -> dict[str, str]:
    for one in schema.fields:
        if _METADATA in one.metadata:
            found: dict[str, str] = json.loads(one.metadata[_METADATA])
            return found
    return {}
