"""ACLs of copied topics on the target, as MirrorMaker 2 copies them.

A literal topic ACL of the source is created for the copy's name. Only the mirror should write to a
copy: an ACL that allows WRITE is left out, and one that allows ALL becomes READ. Denials are copied
as they are. Prefixed ACLs and those for `*` cover topics that the mirror may not copy, and are left
out. ACLs that are deleted on the source stay on the target.
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
    """The ACLs of a cluster. Each method raises LeadershipUnavailableError where none answers."""

    def acls(self) -> AclBindings:
        """All of them."""
        ...

    def create_acls(self, bindings: Iterable[AclBinding]) -> Mapping[AclBinding, str]:
        """Create ACLs. Returns those that were refused, and why."""
        ...


def acls_of_copies(
    bindings: Iterable[AclBinding], targets: Mapping[str, str]
) -> frozenset[AclBinding]:
    """The ACLs that the target should have.

    Args:
        bindings: Of the source.
        targets: The copy's name of each source topic.
    """
    found = set()
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
        found.add(copied)
    return frozenset(found)


class AclCopier:
    """Creates what the target lacks, when a topic was added and every ten minutes.

    Args:
        source: Of the source cluster.
        target: Of the target cluster.
        clock: Seconds of a monotonic clock.
    """

    def __init__(
        self, source: Acls, target: Acls, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source = source
        self._target = target
        self._clock = clock
        self._targets: Mapping[str, str] = {}
        self._copied_at = float("-inf")

    def copy(self, targets: Mapping[str, str]) -> None:
        """Create the ACLs of these copies, if it is time to.

        Raises:
            ConfigurationError: one of the clusters has no authorizer.
            LeadershipUnavailableError: no broker answers, or they do not let this client see ACLs.
        """
        now = self._clock()
        if targets == self._targets and now - self._copied_at < INTERVAL_SECONDS:
            return
        source, target = self._source.acls(), self._target.acls()
        for name, acls in (("source", source), ("target", target)):
            if not acls.enabled:
                raise ConfigurationError(
                    f"--copy-acls: the brokers of the {name} have no authorizer, and so no ACLs"
                )
        missing = acls_of_copies(source.bindings, targets) - set(target.bindings)
        refused = self._target.create_acls(sorted(missing, key=repr))
        for binding, reason in refused.items():
            log.error("mirror.acl_refused", acl=repr(binding), reason=reason)
        for binding in missing - refused.keys():
            log.info("mirror.acl_created", acl=repr(binding))
        self._targets, self._copied_at = dict(targets), now
