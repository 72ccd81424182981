"""Deletes groups that are no longer used, as brokers do after `offsets.retention.minutes`.

The age of a group is its object's age, by the store's clock. An endpoint writes the object of a
group that is in use at least every few hours (`renew`), so an object that has not changed for
longer than the retention belongs to no member of any endpoint.

The store's clock and this host's clock must agree. If one of the two is wrong, nothing is deleted.
"""

import math
import threading
import time
from collections.abc import Callable
from itertools import islice
from typing import Final

from sidetier.endpoint.groups.coordinator import GroupCoordinator
from sidetier.endpoint.groups.stored_offsets import GroupObjects
from sidetier.segments.errors import SidetierError
from sidetier.storage.port import LISTED_AT_ONCE, ObjectSummary
from sidetier.telemetry.logs import logger

log = logger()

DEFAULT_RETENTION: Final = 7 * 86_400.0
_PAUSE: Final = 3600.0
"""Seconds between two passes, and before the first: members of an earlier endpoint join first."""
_RENEWAL_DELAY: Final = 6 * 3600.0
"""Most seconds from the last write of an object to the last use that it stands for: the age after
which it is renewed, a pause between passes, and as much again for a store that does not answer.
"""
_MAX_SKEW: Final = 3600.0
_MAX_LISTED: Final = 100 * LISTED_AT_ONCE
"""Objects that one pass lists; the next pass continues."""
_MAX_DELETED: Final = LISTED_AT_ONCE
_MAX_FAILURES: Final = 10
"""Failures after which a pass ends."""
_LOGGED: Final = 10


def is_expired(modified_ms: int, now_ms: int, retention: float) -> bool:
    """Return whether the last use of a group was longer ago than the retention, for certain.

    Both times are ms since 1970 by the store's clock; `retention` is in seconds.
    """
    return now_ms - modified_ms > (retention + _RENEWAL_DELAY) * 1000


class GroupExpiry:
    """The thread that writes groups in use again, and deletes those that have expired.

    Args:
        objects: The groups in the store, which has conditional writes.
        coordinator: The groups in memory.
        retention: Seconds for which an unused group is kept; infinite for ever.
        now_ms: Returns the time of this host's clock, in ms since 1970.
    """

    def __init__(
        self,
        objects: GroupObjects,
        coordinator: GroupCoordinator,
        retention: float = DEFAULT_RETENTION,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._objects = objects
        self._coordinator = coordinator
        self._retention = retention
        self._now_ms = now_ms
        self._stopped = threading.Event()
        self._start_after = ""
        """Key at which the next listing continues."""

    def start(self) -> None:
        """Start the thread. It ends with the process, or after `close`."""
        threading.Thread(target=self._run, name="endpoint-group-expiry", daemon=True).start()

    def close(self) -> None:
        """Make no further request. May be called twice."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(_PAUSE):
            self.run_once()

    def run_once(self) -> None:
        """Renew and expire groups. Errors are logged: the next pass tries again."""
        expired: list[str] = []
        failures: list[str] = []
        try:
            failures += islice(self._coordinator.renew(), _MAX_FAILURES)
            if not math.isinf(self._retention):
                self._expire(expired, failures)
        except SidetierError as error:
            failures.append(str(error))
        except Exception as error:  # noqa: BLE001 - expiry must not end the service
            failures.append(repr(error))
        if expired:
            log.info("endpoint.groups_expired", groups=len(expired), first=expired[:_LOGGED])
        if failures and not self._stopped.is_set():
            log.warning("endpoint.group_expiry_failed", failures=len(failures), error=failures[0])

    def _expire(self, expired: list[str], failures: list[str]) -> None:
        # Before the listing: objects look younger than they are, never older.
        now_ms = self._objects.store_time_ms()
        ahead = (now_ms - self._now_ms()) / 1000
        if abs(ahead) > _MAX_SKEW:
            failures.append(
                f"the store's clock is {ahead:.0f} s ahead of this host's clock, so the age of "
                "groups is unknown; no group is deleted until the clocks agree to "
                f"{_MAX_SKEW:.0f} s"
            )
            return
        for name, row in self._old(now_ms):
            if self._stopped.is_set() or len(failures) >= _MAX_FAILURES:
                return
            try:
                if self._coordinator.expire(name, row.etag):
                    expired.append(name)
            except SidetierError as error:
                failures.append(str(error))

    def _old(self, now_ms: int) -> list[tuple[str, ObjectSummary]]:
        """List groups on from the end of the last listing, and return those that have expired."""
        old: list[tuple[str, ObjectSummary]] = []
        rows = islice(self._objects.rows(start_after=self._start_after), _MAX_LISTED)
        listed = 0
        for listed, (name, row) in enumerate(rows, 1):  # noqa: B007 - counts
            self._start_after = row.key
            # Another spelling of the name is not a key of the endpoint.
            is_own = self._objects.layout.group_key(name) == row.key
            if is_own and is_expired(row.modified_ms, now_ms, self._retention):
                old.append((name, row))
                if len(old) == _MAX_DELETED:
                    return old
        if listed < _MAX_LISTED:
            self._start_after = ""
        return old
