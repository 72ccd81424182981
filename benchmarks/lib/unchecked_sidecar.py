"""`sidetier` with safety checks removed from outside, for comparison with the unmodified one.

A separate script: `unchecked_sidecar.py WITHOUT`, followed by the arguments of `sidetier`. WITHOUT
is a comma-separated list of removed checks: `epoch_history`, `conditions` or `nothing`. The product
has no switch for either, and must have none. The script replaces its functions by ones that accept
everything, and its stores by ones that ignore conditions. A function that is no longer at its place
is an error; otherwise the benchmark would measure an unmodified sidecar without notice.
"""

import sys
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

from sidetier.cli.main import main
from sidetier.segments.epoch_history import NO_EPOCHS
from sidetier.storage.port import NO_OPTIONS, Body, PutOptions, RemoteStorage
from sidetier.uploader.archive.epoch_history_file import NOT_STORED
from sidetier.uploader.gates.divergence import LocalHistory

EPOCH_HISTORY: Final = "epoch_history"
CONDITIONS: Final = "conditions"
NOTHING: Final = "nothing"


class Unconditional:
    """A store whose puts and copies are unconditional."""

    def __init__(self, store: RemoteStorage) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the store
        return getattr(self._store, name)

    def put_object(self, key: str, body: Body, options: PutOptions = NO_OPTIONS) -> str:
        """Put the object without the condition."""
        return self._store.put_object(key, body, replace(options, condition=None))

    def copy_object(self, *arguments: Any, **options: Any) -> str:  # noqa: ANN401 - passed on
        """Copy the object without the condition."""
        return self._store.copy_object(*arguments, **{**options, "condition": None})


def forget_conditions() -> None:
    """Remove the conditions from every store that the daemon writes to."""
    stores = import_module("sidetier.cli.stores")
    real_open = stores.open_storage
    _replace(
        "sidetier.cli.stores:open_storage",
        lambda *arguments, **options: Unconditional(real_open(*arguments, **options)),
    )


def forget_epoch_history() -> None:
    """Remove all checks of epoch history.

    Batches are not compared with `leader-epoch-checkpoint`, nor the log with the archive, nor
    stored objects with the log, and no epoch history is stored.
    """
    _replace("sidetier.uploader.sending.verify:_check_epoch_history", lambda *_: NO_EPOCHS)
    _replace("sidetier.uploader.archive.history:read_history", lambda *_: LocalHistory(NO_EPOCHS))
    _replace("sidetier.uploader.archive.history:latest_divergence", lambda *_: None)
    _replace("sidetier.uploader.archive.adoption:check_epoch_history", lambda *_: None)
    _replace(
        "sidetier.uploader.archive.epoch_history_file:EpochHistoryFile.cover", lambda *_: NOT_STORED
    )


def _replace(place: str, instead: object) -> None:
    module, _, path = place.partition(":")
    owner: Any = import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    if not hasattr(owner, name):
        raise SystemExit(f"{place} no longer exists: adapt this benchmark")
    setattr(owner, name, instead)


TAKEN_OUT: Final = {
    EPOCH_HISTORY: forget_epoch_history,
    CONDITIONS: forget_conditions,
    NOTHING: lambda: None,
}


def run() -> None:
    """Remove the named checks, and run `sidetier`."""
    for name in sys.argv.pop(1).split(","):
        TAKEN_OUT[name]()
    sys.argv[0] = "sidetier"
    main()


if __name__ == "__main__":
    run()
