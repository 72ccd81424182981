"""Generator of documentation pages from the models and from the table of Pinterest's keys."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sidetier.config.catalogue import json_schema
from sidetier.config.pinterest import KEYS, PinterestKey
from sidetier.config.sources import environment_name

_INTRODUCTION: Final = """\
# Configuration

This page is made from the models by `make docs`.

Settings come from, each stronger than the one before: defaults; files (`--config`, repeatable;
YAML, or a `.properties` file of Pinterest's uploader, see
[pinterest-properties.md](pinterest-properties.md)); the environment; `--set key=value`.
`sidetier config show` prints every setting with its source, `sidetier config check` finds mistakes,
and `sidetier config schema` prints the JSON schema. Unknown settings are refused.

The least that is needed:

```yaml
cluster: {name: prod-a}
log_dirs: [/var/lib/kafka/data]
storage: {url: "s3://bucket/prefix"}
```

- **Durations** are written as `200ms`, `30s`, `5m`, `1h`, `2d`, or as a number of seconds.
- **Sizes** are written as `64KiB`, `16MiB`, `1GiB`, `1GB`, or as a number of bytes.
- **Secrets** are never written into the configuration, only where they are found: `{env: NAME}` or
  `{file: /path}`.
- **Environment**: the name in capitals, `.` as `__`, after `SIDETIER_`:
  `%(example)s`. Values other than text are read as YAML.
"""

_SHORT_TYPES: Final[Mapping[str, str]] = {
    "integer": "integer",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "array": "list",
    "object": "mapping",
}


def configuration_page() -> str:
    """Return the text of `docs/configuration.md`."""
    schema = json_schema()
    lines = [_INTRODUCTION % {"example": environment_name("storage.s3.region")}]
    for name, node in schema["properties"].items():
        rows = list(_rows(name, node, schema, required=name in schema["required"]))
        part = _resolved(node, schema)
        title = node.get("description") or part.get("description", "")
        lines += [
            f"## {name}",
            "",
            title,
            "",
            "| setting | type | default | |",
            "|---|---|---|---|",
        ]
        lines += [*rows, ""]
    return "\n".join(lines).rstrip() + "\n"


def _rows(name: str, node: Any, schema: Any, *, required: bool) -> Iterator[str]:  # noqa: ANN401 -- JSON
    part = _resolved(node, schema)
    if "properties" in part and not _is_secret(part):
        if any(choice.get("type") == "null" for choice in node.get("anyOf", ())):
            yield _row(name, "mapping", _code(None), node["description"])
            if "[]" in name:
                return  # listed above already; the defaults there do not apply in list items
        for key, inner in part["properties"].items():
            yield from _rows(
                f"{name}.{key}", inner, schema, required=key in part.get("required", ())
            )
        return
    default = "required" if required else _code(node.get("default", {}))
    yield _row(name, _type(node, schema), default, node.get("description", ""))
    items = part.get("items", {})
    if "$ref" in items:
        yield from _rows(f"{name}[]", items, schema, required=False)


def _row(name: str, kind: str, default: str, text: str) -> str:
    return f"| `{name}` | {kind} | {default} | {_cell(text)} |"


def _resolved(node: Any, schema: Any) -> Any:  # noqa: ANN401 -- JSON
    """Return the node, or the definition that it or its only non-null choice refers to."""
    choices = [choice for choice in node.get("anyOf", ()) if choice.get("type") != "null"]
    target = choices[0] if len(choices) == 1 else node
    if "$ref" in target:
        return schema["$defs"][target["$ref"].rsplit("/", 1)[1]]
    return target


def _is_secret(part: Mapping[str, Any]) -> bool:
    return part.get("title") == "SecretRef"


def _type(node: Any, schema: Any) -> str:  # noqa: ANN401 -- JSON
    part = _resolved(node, schema)
    if _is_secret(part):
        return "secret"
    if "enum" in part:
        return ", ".join(_code(choice) for choice in part["enum"])
    if "anyOf" in part:
        return str(part["title"])
    if part.get("format") == "path":
        return "absolute path"
    return _SHORT_TYPES[part["type"]] + _bounds(part)


def _bounds(part: Mapping[str, Any]) -> str:
    low, high = part.get("minimum"), part.get("maximum")
    if low is None:
        return ""
    return f" from {low}" if high is None else f" {low} to {high}"


def _code(value: object) -> str:
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


_PINTEREST: Final = """\
# Properties of Pinterest's segment uploader

This page is made from the table in `config/pinterest.py` by `make docs`.

`sidetier run --config my-cluster.properties` reads the file that Pinterest's uploader is run with.
The cluster's name is the file's name without `.properties`, as it is there. What their uploader got
from its Java environment is given beside it, in a second file, the environment or `--set`:
`log_dirs`, `leadership.zookeeper.connect` where the cluster is on ZooKeeper, and `storage.url`.

A key that is not listed here is refused. Keys that are ignored are named in a warning.
"""

_ENDPOINTS: Final = """\
## `<cluster>.json`

Bucket and prefix come from a Java class there. Where a file of the same name with the ending
`.json` lies beside the `.properties`, it is read in the two forms of their example classes:

- `{"ts_bucket": …, "ts_base_prefix": …, "overrides": {"<topic>": {"ts_bucket": …,
  "ts_base_prefix": …}}}`
- `{"bucket_public": …, "bucket_pii": …, "prefix": …, "topics": {"<topic>": {"pii": true}}}`

## What differs on purpose

- Theirs deletes from the store after 3 days; ours deletes nothing.
- Theirs gives a segment up after 3 tries and moves the watermark past it; ours tries for as long as
  the bytes exist, and holds the watermark.
- Theirs has no prefix of hash bits unless asked; ours has 5 bits, but not when their file is read.
- Theirs archives whatever `topics.include` matches; ours leaves internal topics out unless
  `topics.internal` is set.
"""


def pinterest_page() -> str:
    """Return the text of `docs/pinterest-properties.md`."""
    lines = [_PINTEREST]
    for fate, title in (("taken", "Taken"), ("ignored", "Ignored"), ("refused", "Refused")):
        lines += [f"## {title}", "", "| key | setting | theirs | ours | |", "|---|---|---|---|---|"]
        lines += [_pinterest_row(key) for key in KEYS if key.fate == fate]
        lines.append("")
    return "\n".join([*lines, _ENDPOINTS])


def _pinterest_row(key: PinterestKey) -> str:
    setting = f"`{key.setting}`" if key.setting else ""
    cells = [f"`{key.key}`", setting, key.their_default, key.our_default, key.note]
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"
