"""The disk and descriptors of a simulated sidecar: calls of its process that fail for a while.

During an example, the `os` functions that the sidecar uses are replaced. They forward every call,
except the calls of a sidecar whose machine has a fault. Brokers, and the simulation itself, never
see a fault.
"""

import builtins
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

_BLOCK = 4096


class Trouble(Enum):
    """Kinds of faults of a machine."""

    NO_DESCRIPTORS = "EMFILE: nothing can be opened or listed"
    NAMES = "EIO: a log dir cannot be opened, listed or examined"
    CONTENTS = "EIO: files of a log dir that are open cannot be read"


_OPENS = frozenset({"open", "listdir", "scandir"})
_CALLS = {
    Trouble.NO_DESCRIPTORS: _OPENS,
    Trouble.NAMES: _OPENS | {"stat"},
    Trouble.CONTENTS: frozenset({"fstat", "pread", "preadv"}),
}


@dataclass(slots=True)
class Fault:
    """Calls under `path` fail: after `spared` successful ones, `times` in a row."""

    trouble: Trouble
    path: Path
    spared: int = 0
    times: int = 1 << 30
    struck: int = 0
    """Number of calls that have failed."""

    def strikes(self, call: str, path: str) -> bool:
        if call not in _CALLS[self.trouble] or not path.startswith(str(self.path)):
            return False
        if self.spared:
            self.spared -= 1
            return False
        self.times -= 1
        self.struck += self.times >= 0
        return self.times >= 0

    def error(self, path: str) -> OSError:
        number = errno.EMFILE if self.trouble is Trouble.NO_DESCRIPTORS else errno.EIO
        return OSError(number, os.strerror(number), path)


@dataclass(slots=True)
class Machine:
    """State of a sidecar's machine: its fault, if any, and the free bytes of its disk."""

    fault: Fault | None = None
    free_bytes: int = 1 << 40


@dataclass
class FaultyDisk:
    """Replaces `os` functions between `install` and `remove`; one machine is `running`."""

    _machine: Machine | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def install(self) -> None:
        for call in ("listdir", "scandir", "stat", "open"):
            self._replace(os, call, self._by_path)
        self._replace(builtins, "open", self._by_path)
        for call in ("fstat", "pread", "preadv"):
            self._replace(os, call, self._by_descriptor)
        self._replace(os, "statvfs", lambda _, real: lambda path: self._statvfs(real, path))

    def remove(self) -> None:
        self._stack.close()

    @contextmanager
    def running(self, machine: Machine) -> Iterator[None]:
        """Attribute the calls in this context to a process of this machine."""
        before, self._machine = self._machine, machine
        try:
            yield
        finally:
            self._machine = before

    def _replace(self, module: Any, name: str, around: Callable[..., Any]) -> None:  # noqa: ANN401
        self._stack.enter_context(patch.object(module, name, around(name, getattr(module, name))))

    def _by_path(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def replaced(path: Any = ".", *args: Any, **options: Any) -> Any:  # noqa: ANN401
            fault = self._machine.fault if self._machine is not None else None
            if fault is not None and isinstance(path, str) and fault.strikes(call, path):
                raise fault.error(path)
            return real(path, *args, **options)

        return replaced

    def _by_descriptor(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def replaced(descriptor: int, *args: Any, **options: Any) -> Any:  # noqa: ANN401
            fault = self._machine.fault if self._machine is not None else None
            if fault is not None and fault.trouble is Trouble.CONTENTS:
                path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
                if fault.strikes(call, path):
                    raise fault.error(path)
            return real(descriptor, *args, **options)

        return replaced

    def _statvfs(self, real: Callable[..., Any], path: str) -> object:
        if self._machine is None:
            return real(path)
        free, whole = self._machine.free_bytes // _BLOCK, (1 << 40) // _BLOCK
        return SimpleNamespace(f_bavail=free, f_frsize=_BLOCK, f_blocks=whole)
