"""Generator of documentation pages from the models and from the table of Pinterest's keys."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sidetier.config.catalogue import json_schema
from sidetier.config.pinterest import KEYS, PinterestKey
from sidetier.config.sources import environment_name

_INTRODUCTION: Final = """\
# Configuration

`make docs` generates this page from the models in `config/`.

Each of these sources overrides the earlier ones: defaults; files (`--config`, repeatable; YAML,
or a `.properties` file of Pinterest's uploader, see
[pinterest-properties.md](pinterest-properties.md)); the environment; `--set key=value`.
`sidetier config show` prints every setting with its source, `sidetier config check` finds mistakes,
and `sidetier config schema` prints the JSON schema. Unknown settings are refused.

The minimum:

```yaml
cluster: {name: prod-a}
log_dirs: [/var/lib/kafka/data]
storage: {url: "s3://bucket/prefix"}
```

- **Durations** are written as `200ms`, `30s`, `5m`, `1h`, `2d`, or as a number of seconds.
- **Sizes** are written as `64KiB`, `16MiB`, `1GiB`, `1GB`, or as a number of bytes.
- **Secrets** are given by reference: `{env: NAME}` or `{file: /path}`. The configuration never
  contains the secret itself.
- **Environment**: the name in capitals, `.` as `__`, after `SIDETIER_`:
  `%(example)s`. Values of settings that are not text are parsed as YAML.
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

`make docs` generates this page from the table in `config/pinterest.py`.

`sidetier run --config my-cluster.properties` reads the file of Pinterest's uploader. As there, the
cluster's name is the file's name without `.properties`. Set what Pinterest's uploader takes from
its Java environment in a second file, in the environment or with `--set`: `log_dirs`,
`storage.url`, and `leadership.zookeeper.connect` for a cluster on ZooKeeper.

A key that is not listed here is refused. A warning names each key that is ignored.
"""

_ENDPOINTS: Final = """\
## `<cluster>.json`

Pinterest's uploader gets bucket and prefix from a Java class. If there is a `<cluster>.json` beside
the `.properties` file, Sidetier reads it in the two forms of Pinterest's example classes:

- `{"ts_bucket": …, "ts_base_prefix": …, "overrides": {"<topic>": {"ts_bucket": …,
  "ts_base_prefix": …}}}`
- `{"bucket_public": …, "bucket_pii": …, "prefix": …, "topics": {"<topic>": {"pii": true}}}`

## Intended differences

- Pinterest's uploader deletes objects after 3 days. The sidecar deletes none; `sidetier gc` does,
  if you schedule it and set a retention.
- Pinterest's uploader skips a segment after 3 failed attempts and moves `offset.wm` past it.
  Sidetier retries as long as the bytes exist, and does not move `offset.wm` past the segment.
- Pinterest's uploader adds no entropy bits to keys by default. Sidetier adds 5 bits, except with a
  `.properties` file.
- Pinterest's uploader archives every topic that `topics.include` matches. Sidetier excludes
  internal topics unless `topics.internal` is set.
"""


def pinterest_page() -> str:
    """Return the text of `docs/pinterest-properties.md`."""
    lines = [_PINTEREST]
    for fate, title in (("taken", "Taken"), ("ignored", "Ignored"), ("refused", "Refused")):
        lines += [
            f"## {title}",
            "",
            "| key | setting | Pinterest's default | Sidetier's default | |",
            "|---|---|---|---|---|",
        ]
        lines += [_pinterest_row(key) for key in KEYS if key.fate == fate]
        lines.append("")
    return "\n".join([*lines, _ENDPOINTS])


def _pinterest_row(key: PinterestKey) -> str:
    setting = f"`{key.setting}`" if key.setting else ""
    cells = [f"`{key.key}`", setting, key.their_default, key.our_default, key.note]
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"
