import io
import json
import logging
from typing import Any

import pytest

from sidetier.telemetry.logs import configure_logs, logger


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_log_line_is_one_json_object_with_bound_values() -> None:
    stream = io.StringIO()
    configure_logs("json", "info", stream)
    bound = logger(topic="orders", partition=2, base_offset=520)
    bound.info("segment.uploaded", size=7)
    [line] = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "segment.uploaded",
        "level": "info",
        "topic": "orders",
        "partition": 2,
        "base_offset": 520,
        "size": 7,
    }


def test_less_severe_levels_are_left_out() -> None:
    stream = io.StringIO()
    configure_logs("json", "warning", stream)
    logger().info("no")
    logging.getLogger("some.library").info("no")
    logger().warning("yes")
    assert [line["event"] for line in lines(stream)] == ["yes"]


def test_libraries_log_to_the_same_stream_in_the_same_format() -> None:
    stream = io.StringIO()
    configure_logs("json", "info", stream)
    logging.getLogger("kazoo.client").warning("Connection %s, attempts %d", "dropped", 3)
    logging.getLogger("kazoo.client").info("chatter")
    [line] = lines(stream)
    assert line["event"] == "library.log"
    assert line["library"] == "kazoo.client"
    assert line["message"] == "Connection dropped, attempts 3"
    assert line["level"] == "warning"


def test_standard_logging_of_our_packages_has_the_same_format() -> None:
    stream = io.StringIO()
    configure_logs("json", "info", stream)
    logging.getLogger("sidetier.storage.s3").warning("multipart_abort_failed", extra={"key": "k"})
    [line] = lines(stream)
    assert (line["event"], line["key"]) == ("multipart_abort_failed", "k")
    assert "library" not in line


def test_line_that_a_library_repeats_passes_once_a_minute_with_the_number_left_out() -> None:
    stream = io.StringIO()
    configure_logs("json", "info", stream)
    [handler] = logging.getLogger().handlers
    for second in range(130):
        text = f"Connection dropped, attempt {second}"
        record = logging.LogRecord("kazoo.client", logging.WARNING, "", 0, text, (), None)
        record.created = 1000.0 + second
        handler.handle(record)
        logger().info("ours")
    libraries = [line for line in lines(stream) if line["event"] == "library.log"]
    assert [line["message"].rpartition(" ")[2] for line in libraries] == ["0", "60", "120"]
    assert [line.get("repeated") for line in libraries] == [None, 59, 59]
    assert len(lines(stream)) == 130 + 3


def test_debug_level_includes_the_libraries() -> None:
    stream = io.StringIO()
    configure_logs("json", "debug", stream)
    logging.getLogger("kazoo.client").debug("chatter")
    assert lines(stream)[0]["message"] == "chatter"


def test_error_contains_its_traceback_as_one_value() -> None:
    stream = io.StringIO()
    configure_logs("json", "info", stream)
    logger().error("upload.failed", exc_info=OSError("disk full"))
    [line] = lines(stream)
    assert "OSError: disk full" in line["exception"]


def test_number_of_remembered_lines_is_bounded() -> None:
    configure_logs("json", "info", io.StringIO())
    [handler] = logging.getLogger().handlers
    [repeated] = handler.filters
    for number in range(1000):
        name = f"library.{chr(0x4E00 + number)}"  # digits would not make it another line
        handler.handle(logging.LogRecord(name, logging.WARNING, "", 0, "text", (), None))
    assert len(repeated._lines) == 256  # type: ignore[union-attr]


def test_library_line_whose_arguments_do_not_fit_does_not_fail_its_thread(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logs("json", "info", io.StringIO())
    logging.getLogger("kazoo.client").error("%d attempts", "many")
    assert "Logging error" in capsys.readouterr().err


def test_values_without_a_json_form_are_logged_as_text() -> None:
    stream = io.StringIO()
    configure_logs("json", "info", stream)
    logger().info("x", reason=ValueError("no"))
    assert "no" in lines(stream)[0]["reason"]


def test_console_lines_are_readable() -> None:
    stream = io.StringIO()
    configure_logs("console", "info", stream)
    logger(topic="orders").info("segment.uploaded", size=7)
    logging.getLogger("botocore").error("went wrong")
    first, second = stream.getvalue().splitlines()
    assert "segment.uploaded" in first
    assert "topic=orders" in first
    assert "\x1b[" not in stream.getvalue()
    assert "went wrong" in second


def test_console_lines_have_no_control_characters_of_others() -> None:
    """Neither a terminal's escape sequences nor line ends, with which a name could forge a line."""
    stream = io.StringIO()
    configure_logs("console", "info", stream)
    logger().info("group.loaded", group="\x1b[2Jg\n2026-01-01\u202e\x9b", reason=["\x1b"])
    logging.getLogger("botocore").error("went \x1b[31mwrong")
    try:
        int("\x1b[2J")
    except ValueError:
        logger().exception("group.failed")
    lines = stream.getvalue().splitlines()
    assert not {"\x1b", "\u202e", "\x9b"} & set(stream.getvalue())
    assert "group=\\x1b[2Jg\\n2026-01-01\\u202e\\x9b" in lines[0]
    assert "\\x1b[31mwrong" in lines[1]
    assert lines[3] == "Traceback (most recent call last):"


def test_last_configuration_applies_to_existing_loggers() -> None:
    before = logger(topic="t")
    first, second = io.StringIO(), io.StringIO()
    configure_logs("json", "info", first)
    before.info("one")
    configure_logs("json", "info", second)
    before.info("two")
    assert [line["event"] for line in lines(first)] == ["one"]
    assert [line["event"] for line in lines(second)] == ["two"]
