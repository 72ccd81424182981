"""`sidetier serve`: its options, and what it refuses before it listens."""

import pytest

from sidetier.cli.commands.serve import is_loopback, parse_address
from tests.harness.command_line import CommandLine


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("[::1]:0", ("::1", 0)),
        ("kafka.example:65535", ("kafka.example", 65535)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["9092", ":9092", "host:", "host:x", "::1:9092", "host:65536"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|brackets|above 65535"):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104 - parsed only
        ("::", False),
        ("10.0.0.1", False),
        ("kafka.example", False),
    ],
)
def test_loopback_addresses(host: str, is_local: bool) -> None:  # noqa: FBT001
    assert is_loopback(host) is is_local


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--listen", "10.0.0.1:9092"), "--insecure"),
        (("--listen", "0.0.0.0:9092", "--insecure"), "--advertise"),
        (("--listen", "nothing"), "HOST:PORT"),
        (("--memory", "much"), "no size"),
        (("--memory", "1MiB"), "at least 16 MiB"),
        (("--max-connections", "0"), "--max-connections"),
        (("--groups", "kafka"), "relay=HOST:PORT"),
        (("--groups", "relay="), "relay=HOST:PORT"),
        (("--groups-properties", "file"), "is for --groups relay"),
        (("--groups", "local", "--groups-properties", "file"), "is for --groups relay"),
    ],
)
def test_wrong_options_are_refused(cli: CommandLine, options: tuple[str, ...], text: str) -> None:
    assert cli.run("serve", *options) == 2
    assert text in cli.err
