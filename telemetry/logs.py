"""Logs: an event name for each kind of event, with values, as JSON or as text.

Modules log with `logger()`, or with `structlog.get_logger()` and `bind` for topic, partition and
base offset. Libraries that use the standard `logging` (kazoo, waitress) log to the same stream in
the same form.
"""

import logging
import re
import sys
import threading
from collections import OrderedDict
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
"""Libraries that log from `warning` on, except at level `debug`."""
_OURS: Final = "sidetier"
_TRACEBACK: Final = "exception"
"""Where structlog puts the text of a traceback, which has several lines."""
_REPEAT_SECONDS: Final = 60.0
_MAX_LINES: Final = 256
_DIGITS: Final = re.compile(r"\d+")


def configure_logs(
    form: Format = "json", level: Level = "info", stream: TextIO | None = None
) -> None:
    """Send all logs of this process to one stream, by default standard error.

    May be called again: the last call applies, also to existing loggers.
    """
    target = stream if stream is not None else sys.stderr
    structlog.configure(
        processors=[
            *_shared_processors(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # a later call must apply to existing loggers
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(_formatter(form, colours=target.isatty()))
    if level != "debug":
        handler.addFilter(_RepeatedLines())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(_LEVELS[level])
    for name in _TALKATIVE:
        quiet = logging.NOTSET if level == "debug" else max(logging.WARNING, _LEVELS[level])
        logging.getLogger(name).setLevel(quiet)
    logging.captureWarnings(capture=True)


class _RepeatedLines(logging.Filter):
    """Passes a library's line at most once a minute; digits do not make lines different.

    A client that reconnects, such as kazoo, logs each attempt. The next line that passes has
    `repeated`, the number of lines that were left out before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._lines: OrderedDict[tuple[str, int, str], tuple[float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line passes."""
        ours = isinstance(record.msg, dict)  # from structlog, under any name
        if ours or record.name.partition(".")[0] == _OURS:
            return True
        try:
            text = record.getMessage()
        except (TypeError, ValueError, LookupError):
            return True  # the handler reports arguments that do not fit, and raises nothing
        line = (record.name, record.levelno, _DIGITS.sub("0", text))
        with self._lock:
            passed_at, repeated = self._lines.get(line, (None, 0))
            if passed_at is not None and 0 <= record.created - passed_at < _REPEAT_SECONDS:
                self._lines[line] = (passed_at, repeated + 1)
                return False
            self._lines[line] = (record.created, 0)
            self._lines.move_to_end(line)
            if len(self._lines) > _MAX_LINES:
                self._lines.popitem(last=False)
        if repeated:
            record.repeated = repeated
        return True


def logger(**values: Any) -> FilteringBoundLogger:  # noqa: ANN401 -- as structlog's own
    """Return a logger that adds these values to each of its lines."""
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
        renderer = [
            structlog.processors.format_exc_info,
            _escape_values,
            structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=plain),
        ]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            *_shared_processors(),
            structlog.stdlib.ExtraAdder(),
            _as_library_event,
        ],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
    )


def _escape_values(_logger: object, _method: str, event: Any) -> Any:  # noqa: ANN401 -- structlog
    """Escape the characters of texts that could change what a terminal shows, or forge a line.

    Names of groups, users and objects come from others. JSON has its own escapes.
    """
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[name] = _escaped(value, kept="\n\t" if name == _TRACEBACK else "")
    return event


def _escaped(text: str, kept: str) -> str:
    return "".join(
        character
        if character.isprintable() or character in kept
        else character.encode("unicode_escape").decode()
        for character in text
    )


def _as_library_event(_logger: object, _method: str, event: Any) -> Any:  # noqa: ANN401 -- structlog
    """Put a library's log text into `message`, under the event name `library.log`.

    The project's own modules that use the standard `logging` give an event name, and its values as
    `extra`.
    """
    record = event.get("_record")
    name = record.name if record is not None else "unknown"
    if name.partition(".")[0] != _OURS:
        event["message"] = event["event"]
        event["event"] = "library.log"
        event["library"] = name
    return event
