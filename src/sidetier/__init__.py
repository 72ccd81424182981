"""Sidetier: tiered storage for Apache Kafka that runs beside the broker."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidetier.consumer.tiered_consumer import TieredConsumer

__version__ = "0.1.0"
__all__ = ["TieredConsumer", "__version__"]


def __getattr__(name: str) -> object:
    """`TieredConsumer` is loaded when it is asked for: the sidecar needs nothing of it."""
    if name != "TieredConsumer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from sidetier.consumer.tiered_consumer import TieredConsumer  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ImportError(
            f"TieredConsumer needs {error.name}: install sidetier[consumer]"
        ) from error
    return TieredConsumer
