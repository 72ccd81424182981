"""Objects of the Prometheus operator's kinds, checked as the API server would check them."""

from functools import cache
from typing import Any

import jsonschema
import yaml

from sidetier.sandbox.operator_schemas import operator_schema

Schema = dict[str, Any]


def check(manifest: dict[str, Any]) -> None:
    """As with `kubectl apply` and strict validation: unknown fields are refused too.

    Raises:
        jsonschema.ValidationError: the operator's definition does not allow it.
    """
    version = manifest["apiVersion"].partition("/")[2]
    # Not `jsonschema.validate`, which would refuse a pattern that only Go reads.
    jsonschema.Draft202012Validator(_schema(manifest["kind"], version)).validate(manifest)


@cache
def _schema(kind: str, version: str) -> Schema:
    definition = yaml.safe_load(operator_schema(kind).read_text(encoding="utf-8"))
    spec = definition["spec"]
    assert (spec["group"], spec["names"]["kind"]) == ("monitoring.coreos.com", kind)
    (found,) = (v for v in spec["versions"] if v["name"] == version and v["served"])
    schema: Schema = _strict(found["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}  # Kubernetes' own, checked elsewhere
    return schema


def _strict(node: Any) -> Any:  # noqa: ANN401 -- JSON
    """Fields that are not named are refused; the API server would drop them."""
    if isinstance(node, list):
        return [_strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {key: _strict(value) for key, value in node.items()}
    named = isinstance(node.get("properties"), dict) and node.get("type") == "object"
    if named and not node.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made
