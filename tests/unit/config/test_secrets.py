import logging

import pytest
from confluent_kafka import Producer

from sidetier.config.secrets import (
    REDACTED,
    is_secret_property,
    is_sensitive_property,
    redacted,
)
from tests.harness.waiting import wait_until

SECRETS = (
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.client.secret",
    "sasl.password",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
)
NO_SECRETS = (
    "sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.username",
    "security.protocol",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.pem",
    "ssl.key.location",
    "sasl.kerberos.keytab",
    "sasl.mechanisms",
    "sasl.oauthbearer.config",
)


@pytest.mark.parametrize("name", SECRETS)
def test_secret_property_is_recognised_by_its_name(name: str) -> None:
    assert is_secret_property(name)
    assert is_sensitive_property(name)


@pytest.mark.parametrize(
    "name",
    [
        "account_key",
        "sas_token",
        "connection_string",
        "client_secret",
        "schema.registry.basic.auth.user.info",
        "SASL.PASSWORD",
        "sasl.jaas.config",
        "credentials",
    ],
)
def test_secret_properties_of_other_clients_are_recognised(name: str) -> None:
    assert is_secret_property(name)


@pytest.mark.parametrize("name", NO_SECRETS)
def test_addresses_and_identities_need_no_reference(name: str) -> None:
    assert not is_secret_property(name)


def test_properties_librdkafka_redacts_are_redacted() -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("librdkafka-dump")
    log.setLevel(logging.DEBUG)
    log.addHandler(handler)
    given = dict.fromkeys((*SECRETS, *NO_SECRETS), "value")
    given |= {"security.protocol": "plaintext", "sasl.mechanisms": "PLAIN"}
    given |= {"debug": "conf", "bootstrap.servers": "127.0.0.1:1"}
    producer = Producer({**given, "error_cb": lambda _error: None}, logger=log)
    wait_until(lambda: producer.poll(0.01) or len(lines) > len(SECRETS), 10, "the dump")
    dump = "\n".join(lines)
    by_librdkafka = {name for name in given if f"{name} = {REDACTED}" in dump}
    assert {"sasl.password", "sasl.username", "ssl.key.pem"} <= by_librdkafka
    assert {name for name in by_librdkafka if not is_sensitive_property(name)} == set()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://AKIA:pw@store:9000/x", f"http://{REDACTED}@store:9000/x"),
        (
            "see https://u:p@a/ and https://u:q@b/",
            f"see https://{REDACTED}@a/ and https://{REDACTED}@b/",
        ),
        ("https://a/b?sv=1&sig=abc%3D&x=2", f"https://a/b?sv=1&sig={REDACTED}&x=2"),
        ("https://a/?X-Amz-Signature=0a1b", f"https://a/?X-Amz-Signature={REDACTED}"),
        (
            "abfs://container@account.dfs.core.windows.net/x",
            "abfs://container@account.dfs.core.windows.net/x",
        ),
        ("hdfs://kafka@namenode:8020/x", "hdfs://kafka@namenode:8020/x"),
        ("broker-1:9092,broker-2:9092", "broker-1:9092,broker-2:9092"),
    ],
)
def test_secrets_in_urls_are_redacted(text: str, shown: str) -> None:
    assert redacted(text) == shown
