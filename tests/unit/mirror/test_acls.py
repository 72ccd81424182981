"""The ACLs of copies."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from sidetier.mirror.topics.acls import INTERVAL_SECONDS, AclCopier, acls_of_copies
from sidetier.segments.cluster_state import AclBinding, AclBindings
from sidetier.segments.errors import ConfigurationError

READ = AclBinding("TOPIC", "orders", "LITERAL", "User:alice", "*", "READ", "ALLOW")
COPY = replace(READ, name="copy.orders")
TARGETS = {"orders": "copy.orders"}


@pytest.mark.parametrize(
    ("binding", "copied"),
    [
        (READ, {COPY}),
        (replace(READ, operation="DESCRIBE"), {replace(COPY, operation="DESCRIBE")}),
        (replace(READ, operation="ALL"), {COPY}),
        (replace(READ, operation="WRITE"), set()),
        (
            replace(READ, operation="WRITE", permission="DENY"),
            {replace(COPY, operation="WRITE", permission="DENY")},
        ),
        (
            replace(READ, operation="ALL", permission="DENY"),
            {replace(COPY, operation="ALL", permission="DENY")},
        ),
        (replace(READ, name="others"), set()),
        (replace(READ, name="*"), set()),
        (replace(READ, pattern_type="PREFIXED"), set()),
        (replace(READ, resource_type="GROUP"), set()),
    ],
)
def test_acls_of_a_copy_are_derived_from_its_source(
    binding: AclBinding, copied: set[AclBinding]
) -> None:
    assert acls_of_copies([binding], TARGETS) == copied


@dataclass
class FakeAcls:
    bindings: set[AclBinding] = field(default_factory=set)
    enabled: bool = True
    refuses: bool = False
    asked: int = 0

    def acls(self) -> AclBindings:
        self.asked += 1
        return AclBindings(tuple(self.bindings), self.enabled)

    def create_acls(self, bindings: Iterable[AclBinding]) -> Mapping[AclBinding, str]:
        if self.refuses:
            return dict.fromkeys(bindings, "no")
        self.bindings |= set(bindings)
        return {}


def test_acls_are_copied_for_new_topics_and_every_ten_minutes() -> None:
    now = [0.0]
    source, target = FakeAcls({READ}), FakeAcls()
    copier = AclCopier(source, target, lambda: now[0])
    copier.copy({})
    assert target.bindings == set()
    copier.copy(TARGETS)
    assert target.bindings == {COPY}
    later = replace(READ, principal="User:bob")
    source.bindings = {READ, later}
    copier.copy(TARGETS)
    assert source.asked == 2
    now[0] += INTERVAL_SECONDS
    copier.copy(TARGETS)
    assert target.bindings == {COPY, replace(COPY, principal="User:bob")}


def test_a_refused_acl_does_not_stop_the_others() -> None:
    target = FakeAcls(refuses=True)
    AclCopier(FakeAcls({READ}), target).copy(TARGETS)
    assert target.bindings == set()


def test_clusters_without_acls_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="brokers of the target have no authorizer"):
        AclCopier(FakeAcls(), FakeAcls(enabled=False)).check()
