"""helm and promtool, built from source by Go: what checks the chart and the alert rules.

promtool's module has replace directives, so `go install` refuses it as such; from an empty module
of one's own, which only requires it, `go get` and `go install` work.
"""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sidetier.sandbox.cache import fetch_once
from sidetier.sandbox.errors import FetchError
from sidetier.sandbox.go import Go, some_go

_BUILD_TIMEOUT_SECONDS = 1800
_GENTLY = ("nice", "-n", "19")
"""A build of minutes is no reason for others to wait."""


@dataclass(frozen=True, slots=True)
class GoTool:
    """A program, and the version of the module that it is built from.

    `values` are variables, by package and name, that the linker sets, as their own Makefile does.
    """

    name: str
    module: str
    package: str
    version: str
    values: Mapping[str, str] = field(default_factory=dict)


_KUBERNETES_MINOR = "34"
"""The version of Kubernetes that this helm was released for; without it, it takes 1.20."""

HELM = GoTool(
    "helm",
    "helm.sh/helm/v3",
    "helm.sh/helm/v3/cmd/helm",
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
    "github.com/prometheus/prometheus/cmd/promtool",
    "v0.305.0",
)


def go_tool(tool: GoTool, *, root: Path | None = None) -> Path:
    """The program in the cache; it is built first when it is not there (one to three minutes).

    Raises:
        FetchError: the download or the build failed.
    """
    folder = fetch_once(
        f"{tool.name}-{tool.version.removeprefix('v')}", lambda to: _build(tool, to), root=root
    )
    return folder / tool.name


def helm() -> Path:
    """See `go_tool`."""
    return go_tool(HELM)


def promtool() -> Path:
    """See `go_tool`."""
    return go_tool(PROMTOOL)


def _build(tool: GoTool, folder: Path) -> None:
    with some_go(folder) as go:
        module = folder / "module"
        module.mkdir()
        (module / "go.mod").write_text(f"module sidetier/{tool.name}\n", encoding="utf-8")
        _go(go, module, folder, ["get", f"{tool.module}@{tool.version}"])
        _go(go, module, folder, ["get", f"{tool.package}@{tool.version}"])
        _go(go, module, folder, ["install", "-ldflags", _linked(tool), tool.package])
    for leftover in (module / "go.mod", module / "go.sum"):
        leftover.unlink(missing_ok=True)
    module.rmdir()


def _linked(tool: GoTool) -> str:
    """Without symbols, which are a third of a program."""
    return " ".join(["-s -w", *(f"-X {tool.module}/{k}={v}" for k, v in tool.values.items())])


def _go(go: Go, module: Path, target: Path, arguments: Sequence[str]) -> None:
    words = " ".join(("go", *arguments))
    try:
        subprocess.run(
            [*_GENTLY, go.program, *arguments],
            cwd=module,
            env={**go.environment, "GOBIN": str(target), "GOWORK": "off"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=_BUILD_TIMEOUT_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        raise FetchError(f"{words} failed:\n{error.stderr}") from error
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{words} took over {_BUILD_TIMEOUT_SECONDS} s") from error
