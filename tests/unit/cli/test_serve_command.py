"""`sidetier serve`: its options, and what it refuses before it listens."""

import math
import resource
from http.client import HTTPConnection

import click
import pytest

from sidetier.brokers.ports import free_port
from sidetier.cli.commands.serve import (
    is_loopback,
    parse_address,
    parse_preference,
    refuse_insecure,
)
from sidetier.cli.serve import http_server, raise_file_limit
from sidetier.config.model import HttpConfig
from sidetier.config.types import SecretRef
from sidetier.endpoint.live.client import LiveCluster
from sidetier.endpoint.live.logs import LiveSettings
from sidetier.endpoint.service import EndpointSettings, serving
from sidetier.segments.errors import ConfigurationError
from sidetier.storage.fake import FakeStorage
from sidetier.telemetry.metrics import create_registry
from sidetier.wire.settings import ClientSettings
from tests.harness.command_line import CommandLine
from tests.harness.made_archive import access_to


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", ("127.0.0.1", 9092)),
        ("[::1]:0", ("::1", 0)),
        ("[::]:9092", ("::", 9092)),
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
        (("--listen", "[::]:9092", "--insecure"), "--advertise"),
        (("--listen", "nothing"), "HOST:PORT"),
        (("--listen", "10.0.0.1:9092", "--tls-certificate", "x"), "without a login; add"),
        (("--tls-key", "x"), "--tls-certificate"),
        (("--tls-client-ca", "x"), "--tls-certificate"),
        (("--users", "x"), "unencrypted"),
        (("--tls-certificate", "/no/such/file"), "/no/such/file: cannot be read"),
        (("--users", "/no/such/file", "--insecure"), "/no/such/file"),
        (("--max-bytes-per-second", "fast"), "must be a size such as"),
        (("--max-bytes-per-second", "0"), "must be above 0"),
        (("--max-connections-per-host", "0"), "--max-connections-per-host"),
        (("--memory", "much"), "must be a size such as"),
        (("--memory", "1MiB"), "at least 16 MiB"),
        (("--max-connections", "0"), "--max-connections"),
        (("--groups", "kafka"), "relay=HOST:PORT"),
        (("--groups", "relay="), "relay=HOST:PORT"),
        (("--groups-properties", "file"), "is for --groups relay"),
        (("--groups", "local", "--groups-properties", "file"), "is for --groups relay"),
        (("--group-retention", "7d"), "is for --groups local"),
        (("--groups", "local", "--group-retention", "23h"), "at least 1d is needed; forever"),
        (("--groups", "local", "--group-retention", "never"), "such as"),
        (("--prefer", "store"), "are for --live"),
        (("--live-window", "0s"), "are for --live"),
        (("--live-properties", "file"), "are for --live"),
        (("--live", "b:1", "--prefer", "(=store"), "not a regular expression"),
        (("--live", "b:1", "--prefer", "a=nearest"), "not broker, store or a duration"),
        (("--live", "b:1", "--live-properties", "/no/such/file"), "/no/such/file"),
        (("--live", "b:1", "--groups-properties", "file"), "is for --groups relay"),
    ],
)
def test_wrong_options_are_refused(cli: CommandLine, options: tuple[str, ...], text: str) -> None:
    cli.store.mkdir(parents=True)
    assert cli.run("serve", *options) == 2
    assert text in cli.err


@pytest.mark.parametrize(
    ("host", "has", "allowed"),
    [
        ("127.0.0.1", "", True),
        ("127.0.0.1", "tls", True),
        ("127.0.0.1", "users", False),
        ("127.0.0.1", "tls users", True),
        ("0.0.0.0", "", False),  # noqa: S104 - checked only
        ("0.0.0.0", "tls", False),  # noqa: S104 - checked only
        ("0.0.0.0", "users", False),  # noqa: S104 - checked only
        ("0.0.0.0", "tls users", True),  # noqa: S104 - checked only
        ("0.0.0.0", "tls client_ca", True),  # noqa: S104 - checked only
    ],
)
def test_what_needs_insecure(host: str, has: str, allowed: bool) -> None:  # noqa: FBT001
    def check() -> None:
        refuse_insecure(
            host,
            has_tls="tls" in has,
            has_users="users" in has,
            has_client_ca="client_ca" in has,
        )

    if allowed:
        check()
    else:
        with pytest.raises(click.UsageError, match="--insecure"):
            check()


def test_the_first_preference_that_matches_counts() -> None:
    windows = tuple(map(parse_preference, ("audit.*=store", "a.*=2h", "broker")))
    cluster = LiveCluster(lambda: ClientSettings.from_properties({}))
    settings = LiveSettings(cluster, 3600, windows)
    topics = ("audit-1", "audio", "payments")
    assert [settings.window_of(topic) for topic in topics] == [0, 7200, math.inf]
    assert LiveSettings(cluster, 3600, windows[:1]).window_of("not-audit") == 3600


def test_the_soft_limit_of_open_files_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(256, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, given: limits.append(given))
    raise_file_limit(3696)
    assert limits[1:] == [(4096, 4096)]
    with pytest.raises(ConfigurationError, match=r"3697 needs 4097 .* may open 4096.* 3696$"):
        raise_file_limit(3697)


def test_the_metrics_port_requires_the_bearer_token_and_refuses_other_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = EndpointSettings(("127.0.0.1", 0))
    with serving(access_to(FakeStorage()), settings) as endpoint:

        def codes(http: HttpConfig, *paths: str, **headers: str) -> list[int]:
            port = free_port()
            with http_server(port, create_registry(), endpoint, http):
                found = []
                for path in paths:
                    connection = HTTPConnection("127.0.0.1", port, timeout=10)
                    connection.request("GET", path, headers=headers)
                    found.append(connection.getresponse().status)
                    connection.close()
                return found

        paths = ("/", "/metrics", "/api/status", "/readyz")
        assert codes(HttpConfig(), *paths) == [200] * 4
        assert codes(HttpConfig(), *paths, Host="evil.com") == [200, 421, 421, 200]
        secured = HttpConfig(bearer_token=SecretRef(env="HTTP_TOKEN"))
        with pytest.raises(ConfigurationError, match="HTTP_TOKEN"):
            codes(secured, *paths)
        monkeypatch.setenv("HTTP_TOKEN", "s3cret")
        assert codes(secured, *paths) == [200, 401, 401, 200]
        assert codes(secured, *paths, Authorization="Bearer s3cret") == [200] * 4
