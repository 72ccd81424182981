"""helm and promtool, built from source with Go, to check the chart and the alert rules.

Each is built in a copy of its own module. promtool's module has replace directives, so `go install`
refuses to build it by version. It also registers drivers for a dozen clouds, which take much of the
build time and are not needed here.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from devtools.sandbox.go import Go, some_go
from sidetier.brokers.cache import fetch_once
from sidetier.brokers.errors import FetchError

_BUILD_TIMEOUT_SECONDS = 3600
_GENTLY = ("nice", "-n", "19")
"""Lowest CPU priority, because a build takes minutes."""


@dataclass(frozen=True, slots=True)
class GoTool:
    """A program, and the version of the module that it is built from.

    Attributes:
        package: Path of the program's package in the module.
        values: Variables, by package and name, that the linker sets, as in the project's Makefile.
        without: Files of the module that are deleted before the build.
    """

    name: str
    module: str
    package: str
    version: str
    values: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()


_KUBERNETES_MINOR = "34"
"""Kubernetes version that this helm was released for; the default of the source is 1.20."""

HELM = GoTool(
    "helm",
    "helm.sh/helm/v3",
    "cmd/helm",
    "v3.19.0",
    {
        "internal/version.version": "v3.19.0",
        "pkg/chartutil.k8sVersionMajor": "1",
        "pkg/chartutil.k8sVersionMinor": _KUBERNETES_MINOR,
        "pkg/lint/rules.k8sVersionMajor": "1",
        "pkg/lint/rules.k8sVersionMinor": _KUBERNETES_MINOR,
    },
)
PROMTOOL = GoTool(
    "promtool",
    "github.com/prometheus/prometheus",
    "cmd/promtool",
    "v0.305.0",
    without=("plugins/plugins.go",),
)


def go_tool(tool: GoTool, *, root: Path | None = None) -> Path:
    """Return the cached program; it is built first if it is missing (one to three minutes).

    Raises:
        FetchError: The download or the build failed.
    """
    folder = fetch_once(
        f"{tool.name}-{tool.version.removeprefix('v')}", lambda to: _build(tool, to), root=root
    )
    return folder / tool.name


def helm() -> Path:
    """Return the helm program; see `go_tool`."""
    return go_tool(HELM)


def promtool() -> Path:
    """Return the promtool program; see `go_tool`."""
    return go_tool(PROMTOOL)


def _build(tool: GoTool, folder: Path) -> None:
    with some_go(folder) as go, TemporaryDirectory(prefix="module-", dir=folder) as name:
        directory = Path(name)
        fetched = run_go(
            go, directory, ["mod", "download", "-json", f"{tool.module}@{tool.version}"]
        )
        module = directory / "module"
        # Files in Go's module cache are read-only; `copyfile` does not copy permissions.
        shutil.copytree(json.loads(fetched)["Dir"], module, copy_function=shutil.copyfile)
        for file in tool.without:
            (module / file).parent.chmod(0o755)  # directories keep their read-only permissions
            (module / file).unlink()
        install = ["install", "-buildvcs=false", "-ldflags", _linked(tool), f"./{tool.package}"]
        run_go(go, module, install, {"GOBIN": str(folder)})


def _linked(tool: GoTool) -> str:
    """Return the linker flags. They drop the symbols, a third of a program's size."""
    return " ".join(["-s -w", *(f"-X {tool.module}/{k}={v}" for k, v in tool.values.items())])


def run_go(
    go: Go, directory: Path, arguments: Sequence[str], variables: Mapping[str, str] | None = None
) -> str:
    """Run go and return its standard output.

    Raises:
        FetchError: It failed, or took too long.
    """
    command_text = " ".join(("go", *arguments))
    try:
        completed = subprocess.run(
            [*_GENTLY, go.program, *arguments],
            cwd=directory,
            env={**go.environment, "GOWORK": "off", **(variables or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=_BUILD_TIMEOUT_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        raise FetchError(f"{command_text} failed:\n{error.stderr}") from error
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{command_text} took over {_BUILD_TIMEOUT_SECONDS} s") from error
    return completed.stdout
