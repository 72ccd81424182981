"""Logs: one event name per kind of event, and values beside it, as JSON or for people.

Rooms log with `structlog.get_logger()`; `bind` gives a logger its topic, partition, base offset.
Libraries that use the standard `logging` (kazoo, botocore, librdkafka's callbacks) end in the same
stream and form.
"""

import logging
import sys
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.typing import FilteringBoundLogger, Processor

Format = Literal["json", "console"]
Level = Literal["debug", "info", "warning", "error"]

_LEVELS: Final[dict[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_TALKATIVE: Final = (
    "boto3",
    "botocore",
    "hdfs_native",
    "kazoo",
    "s3transfer",
    "urllib3",
    "waitress",
    "watchdog",
)
"""Libraries that are heard from `warning` on, unless `debug` is asked for."""
_OURS: Final = "sidetier"


def configure_logs(
    form: Format = "json", level: Level = "info", stream: TextIO | None = None
) -> None:
    """Send every log of this process to one stream, standard error unless given.

    May be called again; the last call counts, also for loggers that were made before.
    """
    target = stream if stream is not None else sys.stderr
    structlog.configure(
        processors=[
            *_shared_processors(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(_formatter(form, colours=target.isatty()))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(_LEVELS[level])
    for name in _TALKATIVE:
        quiet = logging.NOTSET if level == "debug" else max(logging.WARNING, _LEVELS[level])
        logging.getLogger(name).setLevel(quiet)
    logging.captureWarnings(capture=True)


def logger(**values: Any) -> FilteringBoundLogger:  # noqa: ANN401 -- as structlog's own
    """A logger, with values that each of its lines shall have."""
    bound: FilteringBoundLogger = structlog.get_logger(**values)
    return bound


def _shared_processors() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp"),
        structlog.processors.StackInfoRenderer(),
    ]


def _formatter(form: Format, *, colours: bool) -> logging.Formatter:
    renderer: list[Processor]
    if form == "json":
        renderer = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ]
    else:
        plain = structlog.dev.plain_traceback
        renderer = [structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=plain)]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            *_shared_processors(),
            structlog.stdlib.ExtraAdder(),
            _as_library_event,
        ],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
    )


def _as_library_event(_logger: object, _method: str, event: Any) -> Any:  # noqa: ANN401 -- structlog
    """A library's sentence is no event name: it becomes the message of one.

    Rooms that log by the standard `logging` give an event name, with its values as `extra`.
    """
    record = event.get("_record")
    name = record.name if record is not None else "unknown"
    if name.partition(".")[0] != _OURS:
        event["message"] = event["event"]
        event["event"] = "library.log"
        event["library"] = name
    return event
