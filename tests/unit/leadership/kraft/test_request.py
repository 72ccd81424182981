"""The Metadata request without a broker."""

import logging

import pytest

from sidetier.brokers.ports import free_port
from sidetier.leadership.kraft.metadata_request import BrokerMetadataRequest
from sidetier.segments.errors import ConfigurationError, LeadershipUnavailableError
from sidetier.segments.offsets import BrokerId


def test_unknown_property_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"no\.such\.property"):
        BrokerMetadataRequest("127.0.0.1:9", BrokerId(1), 1.0, {"no.such.property": "1"})


def test_missing_answer_names_the_connection_error_which_is_logged_for_debugging_only(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    request = BrokerMetadataRequest(f"127.0.0.1:{free_port()}", BrokerId(1), 0.5, {})
    with (
        caplog.at_level(logging.DEBUG, "sidetier.leadership.librdkafka"),
        pytest.raises(
            LeadershipUnavailableError,
            match=r"no answer to a Metadata request: .*127\.0\.0\.1:\d+.*Connection refused$",
        ),
    ):
        request.ask()
    assert any("Connection refused" in record.getMessage() for record in caplog.records)
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
    assert capfd.readouterr().err == ""
    request.close()
    with pytest.raises(LeadershipUnavailableError):
        request.ask()
