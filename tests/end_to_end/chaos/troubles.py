"""The store's troubles as rules for a proxy in front of it."""

import random
from collections.abc import Mapping, Sequence

from tests.end_to_end.chaos.schedule import Trouble
from tests.harness.s3_proxy import (
    Fault,
    Rule,
    S3Proxy,
    always,
    answer,
    cut,
    drawn,
    late,
    lose_the_answer,
)

DENIED = "AccessDenied"
_NOBODY = 1  # a port without a listener
_LATE = (late(0.3), late(1.0), late(4.0), late(6.0))  # the sidecars give up after three seconds
_MIXED: Sequence[Fault] = (
    answer(500, "InternalError"), answer(503, "SlowDown"), cut, lose_the_answer, *_LATE,
)  # fmt: skip


def trouble(proxy: S3Proxy, kind: Trouble, dice: random.Random) -> None:
    """Let the store have this trouble from now on."""
    if kind == "away":
        proxy.upstream = _NOBODY
    else:
        proxy.misbehave(rules(dice)[kind])


def mend(proxy: S3Proxy, port: int) -> None:
    """End the trouble; `port` is the port of the store."""
    proxy.upstream = port
    proxy.heal()


def rules(dice: random.Random) -> Mapping[str, Rule]:
    """Proxy rules for each kind of trouble except an outage."""
    return {
        "denied": always(answer(403, DENIED)),
        "error": always(answer(500, "InternalError")),
        "slow-down": drawn(dice, 0.8, (answer(503, "SlowDown"),)),
        "cut": drawn(dice, 0.7, (cut,)),
        "late": drawn(dice, 0.6, _LATE),
        "unanswered": drawn(dice, 0.5, (lose_the_answer,)),
        "mixed": drawn(dice, 0.5, _MIXED),
    }
