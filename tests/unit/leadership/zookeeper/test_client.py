"""Configuration of kazoo."""

import importlib.util
from pathlib import Path

import pytest

from sidetier.leadership.settings import ZookeeperSettings, ZookeeperTls
from sidetier.leadership.zookeeper import client as module
from sidetier.leadership.zookeeper.client import KazooTreeClient, Outcome
from sidetier.segments.errors import ConfigurationError
from sidetier.segments.offsets import BrokerId

US = BrokerId(1)


def test_settings_are_passed_to_kazoo() -> None:
    kazoo = module._kazoo(
        ZookeeperSettings(
            US,
            "one:2181,two:2182/kafka",
            session_timeout=6.0,
            auth=(("digest", "user:secret"),),
            tls=ZookeeperTls(ca=Path("/ca.pem"), certificate=Path("/c.pem"), key=Path("/k.pem")),
        )
    )
    assert sorted(kazoo.hosts or []) == [("one", 2181), ("two", 2182)]
    assert (kazoo.chroot, kazoo._session_timeout) == ("/kafka", 6000)
    assert list(kazoo.auth_data) == [("digest", "user:secret")]
    assert (kazoo.use_ssl, kazoo.ca, kazoo.certfile, kazoo.keyfile) == (
        True,
        "/ca.pem",
        "/c.pem",
        "/k.pem",
    )
    assert (kazoo.verify_certs, kazoo.check_hostname) == (True, True)


def test_sasl_without_its_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    settings = ZookeeperSettings(US, "one:2181", sasl={"mechanism": "DIGEST-MD5"})
    with pytest.raises(ConfigurationError, match="needs the package pure-sasl"):
        KazooTreeClient(settings).start(lambda _: None, lambda _: None)


def test_malformed_address_is_refused() -> None:
    settings = ZookeeperSettings(US, "one:not-a-port")
    with pytest.raises(
        ConfigurationError, match=r"zookeeper\.connect 'one:not-a-port' is not valid"
    ):
        KazooTreeClient(settings).start(lambda _: None, lambda _: None)


def test_secrets_are_not_shown() -> None:
    settings = ZookeeperSettings(
        US,
        "one:2181",
        auth=(("digest", "user:hush"),),
        sasl={"password": "hush"},
        tls=ZookeeperTls(key_password="hush"),
    )
    assert "hush" not in repr(settings)


def test_stop_before_start_and_twice_is_allowed() -> None:
    client = KazooTreeClient(ZookeeperSettings(US, "127.0.0.1:1"))
    client.stop()
    client.start(lambda _: None, lambda _: None)
    client.stop()
    client.stop()


def test_answer_after_stop_is_ignored() -> None:
    """Answers that kazoo delivers while it stops have no receiver; its threads must not die of
    them.
    """
    outcomes: list[Outcome] = []
    client = KazooTreeClient(ZookeeperSettings(US, "one:2181"))
    client.stop()
    client.read("/brokers/topics", outcomes.append)
    client.read_children("/brokers/topics", outcomes.append)
    assert outcomes == []
