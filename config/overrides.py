"""Settings from the environment (`SIDETIER_STORAGE__URL`) and flags (`--set storage.url=…`)."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from sidetier.config.catalogue import (
    annotation_at,
    is_free_form,
    setting_names,
    takes_null,
    takes_text,
)
from sidetier.config.layers import Layer
from sidetier.config.problems import Problem, SettingPath, suggestion
from sidetier.config.yaml_file import yaml_value

PREFIX: Final = "SIDETIER_"
RESERVED: Final = frozenset(
    {
        "SIDETIER_CACHE",
        "SIDETIER_CONFIG",
        "SIDETIER_DEBUG",
        "SIDETIER_OUTPUT",
        "SIDETIER_SCHEMA_REGISTRY_USER_INFO",
    }
)
"""Variables of the command line and its commands, and of the servers for demo and tests."""

_SERVICE_LINK: Final = re.compile(
    r"SIDETIER_(\w+_)?((SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)=.*"
    r"|PORT=(tcp|udp|sctp)://.*)"
)
"""Variables that Kubernetes sets in every container when a Service's name begins with `sidetier`.
They are no settings. The value must match, too: otherwise `SIDETIER_HTTP_PORT=80`, with one
underscore too few, would be ignored without an error.
"""


def environment_name(name: str) -> str:
    """Return `storage.s3.region` as `SIDETIER_STORAGE__S3__REGION`."""
    return PREFIX + name.upper().replace(".", "__")


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """Return the settings in the environment; an unknown `SIDETIER_` variable is a problem."""
    layer = Layer()
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in RESERVED:
            continue
        path = tuple(variable.removeprefix(PREFIX).lower().split("__"))
        if _known(path):
            _put(layer, path, environ[variable], f"env {variable}")
        elif not _SERVICE_LINK.fullmatch(f"{variable}={environ[variable]}"):
            known = [environment_name(name) for name in setting_names()]
            message = f"no setting has this name{suggestion(variable, known)}"
            layer.problems.append(Problem((f"environment variable {variable}",), message))
    return layer


def flag_layer(assignments: Iterable[str]) -> Layer:
    """Return the settings of `--set key=value` flags; an unknown key is a problem."""
    layer = Layer()
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        path = _flag_path(name.strip())
        if not equals:
            message = "must be key=value, such as storage.url=s3://bucket/prefix"
            layer.problems.append(Problem((f"--set {name}",), message))
        elif not _known(path):
            message = f"no setting has this name{suggestion(name, setting_names())}"
            layer.problems.append(Problem((f"--set {name}",), message))
        else:
            _put(layer, path, text, "flag --set")
    return layer


def _flag_path(name: str) -> SettingPath:
    """Split a key at its dots, except inside a free-form mapping:
    `broker.client.security.protocol`.
    """
    steps = tuple(name.split("."))
    for length in range(1, len(steps)):
        if is_free_form(steps[:length]):
            return (*steps[:length], ".".join(steps[length:]))
    return steps


def _known(path: SettingPath) -> bool:
    return all(path) and annotation_at(path) is not None


def _put(layer: Layer, path: SettingPath, text: str, origin: str) -> None:
    try:
        layer.put(path, _typed(path, text), origin)
    except ValueError as error:
        layer.problems.append(Problem(path, str(error)))
        layer.origins[path] = origin


def _typed(path: SettingPath, text: str) -> object:
    """Keep text for settings of type text; parse everything else as YAML."""
    if takes_null(path) and text.strip() in ("", "null", "~"):
        return None
    return text if takes_text(path) else yaml_value(text)
