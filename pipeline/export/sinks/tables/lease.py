"""A lease on a table, so that one writer works at a time: one object with conditional puts.

The holder renews the lease by writing the object again. Another export takes it if there is no
object, if the holder is known to be dead, or if the object has not changed for `ttl` seconds of the
watcher's own clock. Clocks of two machines are never compared. A kill leaves the object, and the
next run takes it over in these ways. A holder that cannot renew the lease counts it as lost well
before another export can take it.
"""

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal, Self
from uuid import uuid4

from sidetier.archive.objects.codec import JsonCodec, Stored
from sidetier.pipeline.export.errors import OtherWriterError
from sidetier.segments.errors import (
    MalformedObjectError,
    PreconditionFailedError,
    StorageError,
)
from sidetier.storage.attempt import monotonic
from sidetier.storage.bodies import BytesBody
from sidetier.storage.port import Condition, IfAbsent, IfMatch, PutOptions, RemoteStorage

_PROC: Final = Path("/proc")
_STARTED: Final = 19
"""Index of the start time in `stat`, counted from 0 after the process's name: see `proc(5)`."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Identity of one process, different from every other process's at any time.

    Attributes:
        machine: boot id of the machine, and its namespace of process ids; empty if unknown.
        pid: process id in that namespace.
        started: start time in the kernel's ticks. It distinguishes processes with a reused pid.
        host: host name, for messages.
    """

    machine: str
    pid: int
    started: int
    host: str


def process_here(pid: int | None = None, proc: Path = _PROC) -> ProcessId:
    """Return the identity of a process of this machine; of the calling process if `pid` is None."""
    pid = os.getpid() if pid is None else pid
    started = _started(proc, pid)
    machine = "" if started is None else _machine(proc)
    return ProcessId(machine, pid, started or 0, socket.gethostname())


def state_of(process: ProcessId, proc: Path = _PROC) -> Literal["runs", "gone", "unknown"]:
    """Return whether a process runs; "unknown" if it is of another machine or another container."""
    if not process.machine or process.machine != _machine(proc):
        return "unknown"
    return "runs" if _started(proc, process.pid) == process.started else "gone"


def _machine(proc: Path) -> str:
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {(proc / 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(proc: Path, pid: int) -> int | None:
    try:
        stat = (proc / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The process's name can contain blanks and parentheses.
    state, *fields = stat.rpartition(")")[2].split()
    # A zombie no longer runs, although `/proc` still has it.
    return None if state in "ZX" else int(fields[_STARTED - 1])


VERSION: Final = 1
_RENEWALS: Final = 3
_SAFE: Final = 2 / 3
"""Part of `ttl` without a renewal after which the holder counts the lease as lost."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Times of a lease, in seconds. It is renewed three times in `ttl`.

    Attributes:
        ttl: life of a lease without renewal.
        wait: how long to wait for a lease that another export holds.
        look: interval between reads while waiting.
    """

    ttl: float = 60.0
    wait: float = 90.0
    look: float = 1.0


@dataclass(frozen=True, slots=True)
class _Document:
    holder: ProcessId
    lease: str


_Held = Stored[_Document]
_CODEC: Final = JsonCodec(
    _Document,
    "a lease",
    VERSION,
    remedy="Remove it where no export is at work on the table",
)


class Lease:
    """A lease that is held from `acquire` to `release`, or until `lost` is True."""

    def __init__(
        self,
        store: RemoteStorage,
        key: str,
        times: LeaseTimes | None = None,
        me: ProcessId | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._store = store
        self._key = key
        self._times = times or LeaseTimes()
        self._me = me or process_here()
        self._clock = clock
        self._name = uuid4().hex
        self._etag = ""
        self._confirmed = 0.0
        self._unconfirmed: float | None = None
        """Begin of the first write since `_confirmed` whose outcome is not known."""
        self._taken = False
        self._stop = threading.Event()
        self._renewer: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Acquire the lease, and start a thread that renews it."""
        self.acquire()
        self._renewer = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._renewer.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop renewing, and release the lease."""
        self._stop.set()
        if self._renewer is not None:
            self._renewer.join()
        self.release()

    def acquire(self) -> None:
        """Take the lease, or wait for it.

        Raises:
            OtherWriterError: another export holds it, and has renewed it in the meantime.
            MalformedObjectError: the stored lease does not parse, or is of a later version.
            MalformedObjectError: the object is not a lease.
            StorageError: see `RemoteStorage`.
        """
        until = self._clock() + self._times.wait
        seen, since = None, 0.0
        while not self._try(seen, since):
            held = self._read()
            if held is not None and (seen is None or held.etag != seen.etag):
                seen, since = held, self._clock()
            if self._clock() >= until and held is not None:
                holder = held.value.holder
                raise OtherWriterError(
                    f"{self._key}: held by process {holder.pid} on {holder.host}. Two "
                    "exports do not write to one table at once; wait until that one has ended"
                )
            self._stop.wait(self._times.look)

    def release(self) -> None:
        """Delete the lease's object, unless another export has taken it in the meantime."""
        if self._taken:
            self._taken = False
            try:
                self._store.delete_object(self._key, condition=IfMatch(self._etag))
            except StorageError:
                return  # the lease expires

    @property
    def lost(self) -> bool:
        """Whether another export may hold the lease now."""
        late = self._clock() - self._confirmed > self._times.ttl * _SAFE
        return not self._taken or late

    def require(self) -> None:
        """Raise OtherWriterError if the lease is lost."""
        if self.lost:
            raise OtherWriterError(
                f"{self._key}: not renewed for {self._clock() - self._confirmed:.0f} s, or taken "
                "by another export: this one stops"
            )

    def renew(self) -> None:
        """Write the lease again. If the store does not answer for a short time, the lease stays
        valid.
        """
        try:
            self._write(IfMatch(self._etag))
        except PreconditionFailedError:
            held = self._read()
            if held is None or held.value.lease != self._name:
                self._taken = False
            else:
                self._recognize(held)

    def _keep(self) -> None:
        pause = self._times.ttl / _RENEWALS
        while self._taken and not self._stop.wait(pause):
            try:
                self.renew()
                pause = self._times.ttl / _RENEWALS
            except (StorageError, MalformedObjectError):
                # If this goes on, `lost` becomes True. The write may have succeeded without its
                # answer, so ask again well before that.
                pause = self._times.ttl / _RENEWALS / 4

    def _try(self, seen: _Held | None, since: float) -> bool:
        held = self._read()
        if held is not None and held.value.lease == self._name:
            self._recognize(held)
            self._taken = True
            return True
        try:
            if held is None:
                self._write(IfAbsent())
            elif self._is_free(held, seen, since):
                self._write(IfMatch(held.etag))
            else:
                return False
        except PreconditionFailedError:
            return False  # `acquire` reads again: an earlier attempt of ours may have succeeded
        self._taken = True
        return True

    def _is_free(self, held: _Held, seen: _Held | None, since: float) -> bool:
        state = state_of(held.value.holder)
        if state == "gone":
            return True
        lapsed = seen is not None and seen.etag == held.etag
        return lapsed and self._clock() - since >= self._times.ttl

    def _recognize(self, held: _Held) -> None:
        """Take over the ETag of a write of ours whose answer was lost.

        It may be any write since the last answer. The lease counts from the earliest of them.
        """
        self._etag = held.etag
        if self._unconfirmed is not None:
            self._confirmed, self._unconfirmed = self._unconfirmed, None

    def _read(self) -> _Held | None:
        return _CODEC.read(self._store, self._key)

    def _write(self, condition: Condition) -> None:
        # The lease counts from before the request: the store may have written it long before its
        # answer arrives, and others count from the write.
        began = self._clock()
        self._unconfirmed = began if self._unconfirmed is None else self._unconfirmed
        values = {
            "lease": self._name,
            "nonce": uuid4().hex,  # equal bytes could have equal ETags
            "holder": asdict(self._me),
        }
        body = BytesBody(_CODEC.encode(values, sort_keys=False))
        self._etag = self._store.put_object(self._key, body, PutOptions(condition=condition))
        self._confirmed, self._unconfirmed = began, None
