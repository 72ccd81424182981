"""Guard for clients whose threads do not survive a fork."""

import os

from sidetier.segments.errors import InvalidRequestError

_process = {"used": False, "lost": False}


def _after_fork() -> None:
    _process["lost"] = _process["used"]


os.register_at_fork(after_in_child=_after_fork)


def check_process() -> None:
    """Refuse to go on where every request would hang for ever.

    A process that is forked after its parent has made a request does not have the parent's threads.

    Raises:
        InvalidRequestError: this process is such a child.
    """
    if _process["lost"]:
        raise InvalidRequestError(
            "this process was forked from one that had used the object store, and its requests "
            "would hang: start it by spawn or forkserver, or fork before the first request"
        )
    _process["used"] = True
