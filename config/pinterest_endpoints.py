"""The two JSON forms in which Pinterest's example providers map topics to bucket and prefix."""

import json
import re
from pathlib import Path
from typing import Any

from sidetier.config.layers import Layer
from sidetier.config.problems import Problem
from sidetier.config.yaml_file import read_config_text


def endpoint_layer(layer: Layer, path: Path) -> None:
    """Add the url and overrides of `<cluster>.json` to the layer, where there is such a file.

    Forms: `{"ts_bucket", "ts_base_prefix", "overrides": {topic: {the same two}}}`, and
    `{"bucket_public", "bucket_pii", "prefix", "topics": {topic: {"pii": bool}}}`.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    if not path.is_file():
        return
    try:
        url, overrides = _places(json.loads(read_config_text(path)))
    except (ValueError, KeyError, TypeError, AttributeError):
        message = "is neither of the two JSON forms that are known; set storage.url instead"
        layer.problems.append(Problem((str(path),), message))
        return
    layer.put(("storage", "url"), url, str(path))
    if overrides:
        layer.put(("storage", "overrides"), overrides, str(path))


def _places(document: Any) -> tuple[str, list[dict[str, str]]]:  # noqa: ANN401 -- JSON
    if "ts_bucket" in document:
        others = document.get("overrides") or {}
        return _url(document, "ts_bucket", "ts_base_prefix"), [
            _override(topic, _url(place, "ts_bucket", "ts_base_prefix"))
            for topic, place in others.items()
        ]
    private = _url(document, "bucket_pii", "prefix")
    return _url(document, "bucket_public", "prefix"), [
        _override(topic, private) for topic, place in document["topics"].items() if place["pii"]
    ]


def _url(place: dict[str, object], bucket: str, prefix: str) -> str:
    parts = (place[bucket], place[prefix])
    if not all(isinstance(part, str) and part for part in parts):
        raise ValueError("bucket and prefix must be text")
    return f"s3://{parts[0]}/{parts[1]}"


def _override(topic: str, url: str) -> dict[str, str]:
    return {"topics": re.escape(topic), "url": url}
