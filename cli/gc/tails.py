"""Open what `sidetier gc --tail-packs` needs: the stores, and the brokers."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

from sidetier.archive.objects.layout import read_note
from sidetier.cli.stores import open_every_store
from sidetier.config.model import Config
from sidetier.leadership.cluster import as_texts
from sidetier.segments.errors import ConfigurationError
from sidetier.uploader.clock import SYSTEM_CLOCK
from sidetier.uploader.tail.cleaning import IsDeleted, not_known_to_be_deleted
from sidetier.uploader.tail.gone import CleanedTail, DeletedTopics, clean_tails
from sidetier.uploader.wiring import tail_places

_CONNECTIONS = 16


class CleanTails(Protocol):
    """Cleans the packs of brokers whose newest records are old enough."""

    def __call__(self, *, dry_run: bool) -> list[CleanedTail]:
        """Return what was done, or would be done."""
        ...


@contextmanager
def cleaning_tails(
    config: Config, older_than: float, *, deleted_topics: bool
) -> Iterator[CleanTails]:
    """Open the stores, and with `deleted_topics` a connection to the brokers.

    Raises:
        ConfigurationError: The brokers are not known to be those of the archived cluster.
        BrokerError: No broker answers.
    """
    with ExitStack() as stack:
        archive = stack.enter_context(open_every_store(config, connections=_CONNECTIONS))
        is_deleted: IsDeleted = not_known_to_be_deleted
        if deleted_topics:
            from sidetier.wire.cluster import Cluster  # noqa: PLC0415 -- kio: only with the option
            from sidetier.wire.settings import ClientSettings  # noqa: PLC0415 -- as above

            if config.broker.bootstrap_servers is None:
                raise ConfigurationError(
                    "broker.bootstrap_servers is not set, so it is unknown which topics are deleted"
                )
            settings = ClientSettings.from_properties(as_texts(config.broker.client_properties()))
            cluster = stack.enter_context(Cluster(settings))
            note = read_note(archive.default_store, archive.layout)
            is_deleted = deleted = DeletedTopics(cluster, note, archive.layout)
            deleted.check()
        place_of, inventory_of = tail_places(archive)

        def clean(*, dry_run: bool) -> list[CleanedTail]:
            return clean_tails(
                archive,
                config.storage,
                place_of,
                inventory_of,
                older_than,
                SYSTEM_CLOCK,
                is_deleted=is_deleted,
                dry_run=dry_run,
            )

        yield clean
