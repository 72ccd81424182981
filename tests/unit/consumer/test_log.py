import logging

import pytest

from sidetier.consumer.routing import NAME, log


def test_events_go_to_the_applications_logging_and_never_to_standard_output(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, NAME)
    log.warning("consumer.gap_skipped", partition="orders-0", first=5, end=9, detail="")
    log.info("consumer.switched", partition="orders-0")
    assert caplog.messages == ["consumer.gap_skipped partition=orders-0 first=5 end=9"]
    assert capsys.readouterr().out == ""
