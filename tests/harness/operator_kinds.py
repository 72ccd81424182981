"""Validates objects of the Prometheus operator's kinds as the API server would."""

from functools import cache
from typing import Any

import jsonschema
import yaml

from devtools.sandbox.chart_tools import operator_schema

Schema = dict[str, Any]


def check(manifest: dict[str, Any]) -> None:
    """Validate like `kubectl apply` with strict validation, which refuses unknown fields.

    Raises:
        jsonschema.ValidationError: The operator's definition does not allow the object.
    """
    version = manifest["apiVersion"].partition("/")[2]
    # `jsonschema.validate` would refuse a pattern that is valid in Go only.
    jsonschema.Draft202012Validator(_schema(manifest["kind"], version)).validate(manifest)


@cache
def _schema(kind: str, version: str) -> Schema:
    definition = yaml.safe_load(operator_schema(kind).read_text(encoding="utf-8"))
    spec = definition["spec"]
    assert (spec["group"], spec["names"]["kind"]) == ("monitoring.coreos.com", kind)
    (served_version,) = (v for v in spec["versions"] if v["name"] == version and v["served"])
    schema: Schema = _strict(served_version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}  # Kubernetes' own, validated elsewhere
    return schema


def _strict(node: Any) -> Any:  # noqa: ANN401 -- JSON
    """Refuse fields without a definition, which the API server would drop."""
    if isinstance(node, list):
        return [_strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    strict = {key: _strict(value) for key, value in node.items()}
    named = isinstance(node.get("properties"), dict) and node.get("type") == "object"
    if named and not node.get("x-kubernetes-preserve-unknown-fields"):
        strict.setdefault("additionalProperties", False)
    return strict
