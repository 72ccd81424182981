"""Log of the consumer, on the application's own `logging`: a library must not write to stdout.

A line is the event's name and its values, `consumer.switched partition=orders-0 to=store offset=5`,
from the logger `sidetier.consumer`.
"""

import logging
from typing import Final

import structlog
from structlog.stdlib import BoundLogger
from structlog.typing import EventDict, WrappedLogger

NAME: Final = "sidetier.consumer"


def _line(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    name = event.pop("event")
    return " ".join([str(name), *(f"{key}={value}" for key, value in event.items() if value != "")])


log: Final[BoundLogger] = structlog.wrap_logger(
    logging.getLogger(NAME),
    processors=[structlog.stdlib.filter_by_level, _line],
    wrapper_class=BoundLogger,
)
