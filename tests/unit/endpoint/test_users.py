"""The users file: credentials, permissions, and errors that name their place."""

import hmac
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from scramp import ScramMechanism  # type: ignore[import-untyped]  # ships no types

from sidetier.endpoint.users import (
    EVERYTHING,
    SCRAM_MECHANISMS,
    Access,
    Names,
    Users,
    derive,
    entry_of,
    read_users,
)
from sidetier.segments.errors import ConfigurationError
from tests.harness.endpoint import write_users

CREDENTIAL = entry_of({"SCRAM-SHA-512": derive("SCRAM-SHA-512", "secret")})["SCRAM-SHA-512"]

DIGEST = hmac.digest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "users.yaml"


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_credentials_are_those_of_scram(mechanism: str) -> None:
    salt = bytes(range(16))
    made = ScramMechanism(mechanism).make_auth_info("secret", iteration_count=5000, salt=salt)
    assert tuple(derive(mechanism, "secret", 5000, salt)) == made
    assert derive(mechanism, "secret") != derive(mechanism, "secret")  # a random salt


def test_users_and_their_permissions(path: Path) -> None:
    write_users(
        path,
        {
            "alice": {
                "password": "secret",
                "topics": ["orders", "audit-*"],
                "groups": ["*"],
                "max_bytes_per_second": "5MB",
            },
            "CN=reader,O=Example": {"topics": ["*"]},
        },
    )
    users = read_users(path)
    alice = users.get("alice")
    assert alice is not None
    assert alice.bytes_per_second == 5_000_000
    readable = [
        name
        for name in ("orders", "orders2", "audit-", "audit-1", "audit", "", "*")
        if alice.access.can_read(name)
    ]
    assert readable == ["orders", "audit-", "audit-1"]
    assert alice.access.can_use_group("anything")
    reader = users.get("CN=reader,O=Example")
    assert reader is not None
    assert reader.access.can_read("anything")
    assert not reader.access.can_use_group("anything")
    assert users.get("bob") is None
    assert not Access().can_read("orders")
    assert EVERYTHING.can_read("orders")
    assert "secret" not in path.read_text()


def test_passwords(path: Path) -> None:
    write_users(path, {"alice": {"password": "secret"}, "by-certificate": {}})
    users = read_users(path)
    assert users.has_password("alice", "secret")
    for name, password in (
        ("alice", "Secret"), ("alice", ""), ("bob", "secret"), ("by-certificate", "secret"),
    ):  # fmt: skip
        assert not users.has_password(name, password)


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
def test_an_unknown_user_looks_like_a_known_one(path: Path, mechanism: str) -> None:
    known = derive(mechanism, "secret", 8192, bytes(40))
    path.write_text(yaml.safe_dump({"users": {"alice": entry_of({mechanism: known})}}))
    users = read_users(path)
    unknown = users.credential("bob", mechanism)
    assert unknown == read_users(path).credential("bob", mechanism)  # the same each time
    assert unknown.salt != users.credential("carol", mechanism).salt
    assert [len(part) for part in unknown[:3]] == [len(part) for part in known[:3]]
    assert unknown.iterations == 8192
    assert users.credential("alice", mechanism) == known


def test_an_unknown_user_costs_what_a_known_one_costs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the time of the answer to SCRAM's first message would show who exists."""
    write_users(path, {"alice": {"password": "secret"}})
    users = read_users(path)
    made: list[bytes] = []

    def counted(key: bytes, message: bytes, digest: str) -> bytes:
        made.append(message)
        return DIGEST(key, message, digest)

    monkeypatch.setattr("sidetier.endpoint.users.hmac.digest", counted)
    costs = []
    for name in ("alice", "bobby"):
        made.clear()
        users.credential(name, "SCRAM-SHA-256")
        costs.append([len(message) for message in made])
    assert costs[0] == costs[1] != []


def test_unknown_users_look_the_same_in_each_endpoint(path: Path) -> None:
    write_users(path, {"alice": {"password": "secret"}})
    question = (
        "from pathlib import Path; from sidetier.endpoint.users import read_users; "
        f"print(read_users(Path({str(path)!r})).credential('bob', 'SCRAM-SHA-256'))"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", question], check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    }
    assert answers == {f"{read_users(path).credential('bob', 'SCRAM-SHA-256')}\n"}


def test_without_any_credential_unknown_users_get_a_default() -> None:
    users = Users({})
    assert users.credential("bob", "SCRAM-SHA-256").iterations == 4096
    assert not users.has_password("bob", "secret")


@pytest.mark.parametrize(
    ("entry", "texts"),
    [
        ({"password": "secret"}, ["users.alice.password", ":3)", "scram-credential"]),
        ({"topic": ["orders"]}, ["users.alice.topic", "no such key"]),
        ({"topics": ["a*b"]}, ["users.alice.topics", "one * at their end"]),
        ({"topics": [""]}, ["users.alice.topics"]),
        ({"topics": "orders"}, ["users.alice.topics", "list"]),
        ({"topics": [1]}, ["users.alice.topics[0]", "string"]),
        ({"max_bytes_per_second": "fast"}, ["users.alice.max_bytes_per_second", "size"]),
        ({"max_bytes_per_second": 0}, ["users.alice.max_bytes_per_second", "at least 1"]),
        ({"SCRAM-SHA-1": CREDENTIAL}, ["users.alice.SCRAM-SHA-1", "no such key"]),
        ({"SCRAM-SHA-512": {**CREDENTIAL, "iterations": 1000}}, ["iterations", "4096"]),
        ({"SCRAM-SHA-512": {**CREDENTIAL, "salt": "c2hvcnQ="}}, ["salt", "at least 12 bytes"]),
        ({"SCRAM-SHA-512": {**CREDENTIAL, "stored_key": "?"}}, ["stored_key", "base64"]),
        ({"SCRAM-SHA-256": CREDENTIAL}, ["stored_key", "must have 32 bytes for SCRAM-SHA-256"]),
        ({"SCRAM-SHA-512": {"iterations": 4096}}, ["SCRAM-SHA-512.salt", "is required"]),
    ],
)
def test_errors_name_the_user_and_the_line(
    path: Path, entry: dict[str, Any], texts: list[str]
) -> None:
    path.write_text(yaml.safe_dump({"users": {"alice": entry}}))
    with pytest.raises(ConfigurationError) as raised:
        read_users(path)
    message = str(raised.value)
    for text in [*texts, str(path), "alice"]:
        assert text in message
    assert "secret" not in message
    assert str(CREDENTIAL["server_key"]) not in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is required"),
        ("users: {}", "has no users"),
        ("users: [alice]", "dictionary"),
        ("- alice", "mapping"),
        ("users: {alice: {}\n", "is not YAML"),
        ("users: {alice: {}, alice: {}}", "occurs twice"),
        ("users: {alice: {}}\nuser: {}", "no such key"),
        ("alice: {topics: [orders]}", "must be indented below `users:`"),
        ('users: {"": {}}', "must not be empty"),
        ('users: {"a\\0b": {}}', "control characters"),
        ('users: {"\\uFB01sh": {}}', "NFKC"),
        ("users: {1: {}}", "quotes"),
    ],
)
def test_wrong_files(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read_users(path)


def test_a_missing_file(path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such configuration file"):
        read_users(path)


def test_names_of_prefixes() -> None:
    names = Names(frozenset({"a"}), ("b-", "c"))
    assert [name for name in ("a", "ab", "b-", "b", "c", "cd") if name in names] == [
        "a", "b-", "c", "cd",
    ]  # fmt: skip
