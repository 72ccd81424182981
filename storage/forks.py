"""Guard for clients whose threads do not survive a fork."""

import os

from sidetier.segments.errors import InvalidRequestError

_process = {"used": False, "lost": False}


def _after_fork() -> None:
    _process["lost"] = _process["used"]


os.register_at_fork(after_in_child=_after_fork)


def check_process() -> None:
    """Raise an error in a process where every request would hang forever.

    A process that is forked after its parent made a request lacks the client's threads.

    Raises:
        InvalidRequestError: This process is such a child.
    """
    if _process["lost"]:
        raise InvalidRequestError(
            "this process was forked from one that had used the object store, and its requests "
            "would hang: start it by spawn or forkserver, or fork before the first request"
        )
    _process["used"] = True
