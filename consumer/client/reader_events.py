"""What the archive reader says beside records, told to the switchboard."""

from sidetier.archive.errors import DamagedArchiveError, NoArchiveError
from sidetier.archive.holes import HoleReason
from sidetier.archive.reading.results import Failed, Hole, ReachedEnd
from sidetier.consumer.client.errors import StoreError
from sidetier.consumer.client.sources import Span
from sidetier.consumer.client.subscription_state import SubscriptionState


def tell(board: SubscriptionState, news: ReachedEnd | Hole | Failed) -> None:
    """Let the switchboard find out where the partition is read next."""
    if isinstance(news, ReachedEnd):
        board.store_ended(news.tp, news.next_offset)
    elif isinstance(news, Hole):
        below = news.reason is HoleReason.BELOW_START
        board.store_lacks(news.tp, Span(news.first, news.end), news.detail, below=below)
    elif isinstance(news.error, DamagedArchiveError):
        damaged = news.error
        board.store_lacks(
            news.tp, Span(damaged.first, damaged.end), f"damaged: {damaged}", below=False
        )
    elif isinstance(news.error, NoArchiveError):
        board.store_lacks(
            news.tp, Span(news.next_offset, news.next_offset), str(news.error), below=True
        )
    else:
        error = StoreError(news.tp, news.next_offset, news.error)
        board.store_failed(news.tp, news.next_offset, error)
