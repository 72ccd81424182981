"""Schemas of the Prometheus operator's custom resources, from its Go module.

Nothing is built. The Go module proxy provides the operator's source tree, and the cache keeps three
files of definitions, as they are installed in a cluster.
"""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from devtools.sandbox.go import some_go
from devtools.sandbox.go_tools import run_go
from sidetier.brokers.cache import fetch_once
from sidetier.brokers.errors import FetchError

VERSION: Final = "v0.85.0"
KINDS: Final = ("PodMonitor", "PrometheusRule", "ServiceMonitor")
_MODULE: Final = "github.com/prometheus-operator/prometheus-operator"
_FOLDER: Final = Path("example", "prometheus-operator-crd")


def operator_schema(kind: str, *, root: Path | None = None) -> Path:
    """Return the cached CustomResourceDefinition (YAML) of one of KINDS; it is fetched if missing.

    Raises:
        FetchError: The download failed, or the module does not contain it.
    """
    return operator_schemas(root=root) / _file_name(kind)


def operator_schemas(*, root: Path | None = None) -> Path:
    """Return the folder of all definitions. Raises as `operator_schema` does."""
    return fetch_once(f"prometheus-operator-{VERSION.removeprefix('v')}", _fetch, root=root)


def _file_name(kind: str) -> str:
    return f"monitoring.coreos.com_{kind.lower()}s.yaml"


def _fetch(folder: Path) -> None:
    with some_go(folder) as go, TemporaryDirectory(prefix="module-", dir=folder) as name:
        description = run_go(go, Path(name), ["mod", "download", "-json", f"{_MODULE}@{VERSION}"])
        module = Path(json.loads(description)["Dir"])
        for kind in KINDS:
            source = module / _FOLDER / _file_name(kind)
            try:
                shutil.copyfile(source, folder / source.name)
            except OSError as error:
                raise FetchError(f"{_MODULE}@{VERSION} has no {_FOLDER / source.name}") from error
