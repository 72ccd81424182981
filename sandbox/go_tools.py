"""helm and promtool, built from source by Go: what checks the chart and the alert rules.

Each is built in a copy of its own module. That of promtool has replace directives, so `go install`
refuses it by version; and it registers drivers for a dozen clouds, which are much of its build and
of no use here.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from sidetier.sandbox.cache import fetch_once
from sidetier.sandbox.errors import FetchError
from sidetier.sandbox.go import Go, some_go

_BUILD_TIMEOUT_SECONDS = 3600
_GENTLY = ("nice", "-n", "19")
"""A build of minutes is no reason for others to wait."""


@dataclass(frozen=True, slots=True)
class GoTool:
    """A program, and the version of the module that it is built from.

    `values` are variables, by package and name, that the linker sets, as their own Makefile does;
    `without` are files of the module that are left out.
    """

    name: str
    module: str
    package: str
    version: str
    values: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()


_KUBERNETES_MINOR = "34"
"""The version of Kubernetes that this helm was released for; without it, it takes 1.20."""

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
    with some_go(folder) as go, TemporaryDirectory(prefix="module-", dir=folder) as name:
        place = Path(name)
        fetched = run_go(go, place, ["mod", "download", "-json", f"{tool.module}@{tool.version}"])
        module = place / "module"
        # Files in Go's cache are read-only; their permissions stay behind.
        shutil.copytree(json.loads(fetched)["Dir"], module, copy_function=shutil.copyfile)
        for file in tool.without:
            (module / file).parent.chmod(0o755)  # read-only too
            (module / file).unlink()
        install = ["install", "-buildvcs=false", "-ldflags", _linked(tool), f"./{tool.package}"]
        run_go(go, module, install, {"GOBIN": str(folder)})


def _linked(tool: GoTool) -> str:
    """Without symbols, which are a third of a program."""
    return " ".join(["-s -w", *(f"-X {tool.module}/{k}={v}" for k, v in tool.values.items())])


def run_go(
    go: Go, directory: Path, arguments: Sequence[str], variables: Mapping[str, str] | None = None
) -> str:
    """What go said on standard output.

    Raises:
        FetchError: it failed, or took too long.
    """
    words = " ".join(("go", *arguments))
    try:
        done = subprocess.run(
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
        raise FetchError(f"{words} failed:\n{error.stderr}") from error
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{words} took over {_BUILD_TIMEOUT_SECONDS} s") from error
    return done.stdout
