"""The JSON schema of the configuration file."""

from typing import Any

from sidetier.config.model import Config


def json_schema() -> dict[str, Any]:
    """JSON Schema, draft 2020-12, of the YAML file. Nothing that the schema passes is promised to
    be free of contradictions: `sidetier config check` looks for those.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Sidetier configuration",
        **{key: value for key, value in Config.model_json_schema().items() if key != "title"},
    }
