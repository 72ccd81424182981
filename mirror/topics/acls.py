"""Copy the ACLs of copied topics to the target, as MirrorMaker 2 does.

For each literal topic ACL of the source, an ACL for the copy's name is created. Only the mirror
should write to a copy: an ACL that allows WRITE is left out, and one that allows ALL becomes READ.
ACLs that deny are copied unchanged. Prefixed ACLs and ACLs for `*` are left out, because they cover
topics that the mirror may not copy. ACLs that are deleted on the source stay on the target.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, Protocol

import structlog

from sidetier.segments.cluster_state import AclBinding, AclBindings
from sidetier.segments.errors import ConfigurationError

INTERVAL_SECONDS: Final = 600.0

log = structlog.get_logger("sidetier.mirror")


class Acls(Protocol):
    """The ACLs of a cluster. Each method raises LeadershipUnavailableError if no broker answers."""

    def acls(self) -> AclBindings:
        """Return all ACLs."""
        ...

    def create_acls(self, bindings: Iterable[AclBinding]) -> Mapping[AclBinding, str]:
        """Create ACLs. Return the refused ones, each with the reason."""
        ...


def acls_of_copies(
    bindings: Iterable[AclBinding], targets: Mapping[str, str]
) -> frozenset[AclBinding]:
    """Return the ACLs that the target should have.

    Args:
        bindings: The ACLs of the source.
        targets: The copy's name of each source topic.
    """
    wanted = set()
    for binding in bindings:
        if (
            binding.resource_type != "TOPIC"
            or binding.pattern_type != "LITERAL"
            or binding.name not in targets
        ):
            continue
        copied = replace(binding, name=targets[binding.name])
        if binding.permission == "ALLOW" and binding.operation == "WRITE":
            continue
        if binding.permission == "ALLOW" and binding.operation == "ALL":
            copied = replace(copied, operation="READ")
        wanted.add(copied)
    return frozenset(wanted)


class AclCopier:
    """Creates missing ACLs on the target when a topic was added, and every ten minutes.

    Args:
        source: The ACLs of the source cluster.
        target: The ACLs of the target cluster.
        clock: Returns seconds of a monotonic clock.
    """

    def __init__(
        self, source: Acls, target: Acls, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source = source
        self._target = target
        self._clock = clock
        self._targets: Mapping[str, str] = {}
        self._copied_at = float("-inf")

    def check(self) -> None:
        """Raise the error with which `copy` would fail. Changes nothing."""
        self._read()

    def copy(self, targets: Mapping[str, str]) -> None:
        """Create the missing ACLs of these copies if a topic was added or the interval is over.

        Args:
            targets: The copy's name of each source topic.

        Raises:
            ConfigurationError: One of the clusters has no authorizer.
            LeadershipUnavailableError: No broker answers, or the brokers do not allow this client
                to describe ACLs.
        """
        now = self._clock()
        if targets == self._targets and now - self._copied_at < INTERVAL_SECONDS:
            return
        source, target = self._read()
        missing = acls_of_copies(source.bindings, targets) - set(target.bindings)
        refused = self._target.create_acls(sorted(missing, key=repr))
        for binding, reason in refused.items():
            log.error("mirror.acl_refused", acl=repr(binding), reason=reason)
        for binding in missing - refused.keys():
            log.info("mirror.acl_created", acl=repr(binding))
        # Last, so that after an error the next call tries again.
        self._targets, self._copied_at = dict(targets), now

    def _read(self) -> tuple[AclBindings, AclBindings]:
        source, target = self._source.acls(), self._target.acls()
        for name, acls in (("source", source), ("target", target)):
            if not acls.enabled:
                raise ConfigurationError(
                    f"--copy-acls: the brokers of the {name} have no authorizer, and so no ACLs"
                )
        return source, target
