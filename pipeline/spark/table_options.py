"""Options of a table in Spark's catalog: `CREATE TABLE t USING sidetier OPTIONS (...)`.

When the table is created, Spark passes each option twice, under its name and as `option.<name>`,
among the table's properties (`provider`, `owner`, `location`, TBLPROPERTIES). When the
table is read, Spark passes none of them to a Python source (4.0), only the catalog's columns with
their metadata. So the options are stored in this metadata. They contain no secret, only references.
"""

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from sidetier.segments.errors import ConfigurationError
from sidetier.segments.json_text import parse_json

_PREFIX: Final = "option."
_METADATA: Final = "sidetier.options"


def options_of(options: Mapping[str, str], schema: StructType | None = None) -> dict[str, str]:
    """Return the options that the user has given.

    While a table is created, these are the properties with the prefix `option.`. While a table is
    read, they are the options that `with_options` has stored in its columns, overridden by the
    options of the query (`SELECT ... FROM t WITH (...)`).

    Raises:
        ConfigurationError: there are none, for example because the table was created with columns.
    """
    if is_table(options):
        return {
            name[len(_PREFIX) :]: value
            for name, value in options.items()
            if name.lower().startswith(_PREFIX)
        }
    kept = {} if schema is None else _kept(schema)
    given = {name.lower() for name in options}
    stored = {name: value for name, value in kept.items() if name.lower() not in given}
    if not stored and not options:
        raise ConfigurationError(
            "no options are given. Spark does not pass the options of a table to a Python source: "
            "create the table without columns (CREATE TABLE t USING sidetier OPTIONS (...); the "
            "option columns selects columns), or read it WITH ('subscribe'='orders', ...)"
        )
    return {**stored, **options}


def is_table(options: Mapping[str, str]) -> bool:
    """Whether these are the properties of a table that is being created."""
    return any(name.lower().startswith(_PREFIX) for name in options)


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema with the options in the metadata of its first column."""
    first, *rest = schema.fields
    metadata = {_METADATA: json.dumps(dict(options), sort_keys=True)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *rest])


def _kept(schema: StructType) -> dict[str, str]:
    for column in schema.fields:
        if _METADATA in column.metadata:
            options: dict[str, str] = parse_json(column.metadata[_METADATA])
            return options
    return {}
