"""`sidetier` with safety taken out from outside, to be measured beside itself as it is.

A script of its own: `unchecked_sidecar.py WITHOUT` and then the arguments of `sidetier`. WITHOUT
names what goes, with commas between: `lineage`, `conditions`, or `nothing`. The product has no
switch for either, and must have none: here its functions are replaced by ones that accept
everything, and its stores by ones that forget conditions. A name that is no longer where it was is
an error: else the benchmark would measure nothing, and not notice.
"""

import sys
from importlib import import_module
from typing import Any, Final

from sidetier.cli.main import main
from sidetier.segments.epoch_history import NO_EPOCHS
from sidetier.storage.port import RemoteStorage
from sidetier.uploader.archive.epoch_history_file import NOT_STORED
from sidetier.uploader.gates.divergence import LocalHistory

LINEAGE: Final = "lineage"
CONDITIONS: Final = "conditions"
NOTHING: Final = "nothing"


class Unconditional:
    """A store whose puts and copies are made whatever is there."""

    def __init__(self, store: RemoteStorage) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        return getattr(self._store, name)

    def put_object(self, *arguments: Any, **options: Any) -> str:  # noqa: ANN401 - passed on
        """As the port says, without the condition."""
        return self._store.put_object(*arguments, **{**options, "condition": None})

    def copy_object(self, *arguments: Any, **options: Any) -> str:  # noqa: ANN401 - passed on
        """As the port says, without the condition."""
        return self._store.copy_object(*arguments, **{**options, "condition": None})


def forget_conditions() -> None:
    """Every store that the daemon writes to."""
    stores = import_module("sidetier.cli.stores")
    real_open = stores.open_storage
    _replace(
        "sidetier.cli.stores:open_storage",
        lambda *arguments, **options: Unconditional(real_open(*arguments, **options)),
    )


def forget_epoch_history() -> None:
    """Batches are not compared with `leader-epoch-checkpoint`, the log not with the archive, what
    is stored already not with the log, and no lineage is stored.
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
        raise SystemExit(f"{place} is not there any more: this benchmark has to follow")
    setattr(owner, name, instead)


TAKEN_OUT: Final = {
    LINEAGE: forget_epoch_history,
    CONDITIONS: forget_conditions,
    NOTHING: lambda: None,
}


def run() -> None:
    """Take out what is named, and be `sidetier` from then on."""
    for name in sys.argv.pop(1).split(","):
        TAKEN_OUT[name]()
    sys.argv[0] = "sidetier"
    main()


if __name__ == "__main__":
    run()
