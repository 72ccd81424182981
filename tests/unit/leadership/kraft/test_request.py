"""The Metadata request without a broker."""

import logging
import weakref

import pytest

from sidetier.brokers.ports import free_port
from sidetier.leadership.cluster import _Drained, admin_client
from sidetier.leadership.kraft.metadata_request import BrokerMetadataRequest
from sidetier.segments.errors import ConfigurationError, LeadershipUnavailableError
from sidetier.segments.offsets import BrokerId
from tests.harness.waiting import wait_until


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


def test_log_of_a_client_that_asks_nothing_is_drained_until_the_client_is_gone() -> None:
    drained = _Drained(interval=0.01)
    client = admin_client(f"127.0.0.1:{free_port()}", {})
    drained.add(client)
    log = client._log
    wait_until(lambda: log.connection_error is not None, 30, "a line of the log")
    gone = weakref.ref(client)
    del client
    wait_until(lambda: gone() is None, 30, "the end of the client")
