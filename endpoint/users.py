"""The users file: SCRAM credentials, and the topics and groups that each user may use.

A credential proves a password without containing it (RFC 5802). Whoever reads the file cannot log
in with it, but can try passwords against it.
"""

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import threading
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from sidetier.config.problems import Problem, SettingPath, raise_problems
from sidetier.config.sources import read_config_text, yaml_layer
from sidetier.config.units import parse_size
from sidetier.segments.errors import ConfigurationError

_HASHES: Final[Mapping[str, str]] = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
SCRAM_MECHANISMS: Final = tuple(_HASHES)
MIN_ITERATIONS: Final = 4096
"""RFC 7677 and Kafka require at least this many."""
MAX_ITERATIONS: Final = 100_000
"""With PLAIN, the endpoint computes them for each login: about 0.1 s of a core."""
_DERIVATIONS: Final = threading.BoundedSemaphore(max((os.cpu_count() or 1) // 2, 1))
"""Bounds the logins with PLAIN that are computed at the same time. Guesses of passwords then leave
half of the cores to the clients that read.
"""
_MIN_SALT: Final = 12
_SALT: Final = 20
_SECRET: Final = secrets.token_bytes(32)
"""Takes part in the credentials of unknown users if no user has a credential."""


# Access


@dataclass(frozen=True, slots=True)
class Names:
    """A list of allowed names.

    Attributes:
        exact: Whole names.
        prefixes: Each name that begins with one of these is in the list; "" allows all.
    """

    exact: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    def __contains__(self, name: str) -> bool:
        return name in self.exact or name.startswith(self.prefixes)


ALL_NAMES: Final = Names(prefixes=("",))


@dataclass(frozen=True, slots=True)
class Access:
    """What a client may use. Hashable."""

    topics: Names = Names()
    groups: Names = Names()

    def can_read(self, topic: str) -> bool:
        """Return whether the client may read a topic, and know that it exists."""
        return topic in self.topics

    def can_use_group(self, group: str) -> bool:
        """Return whether the client may join a consumer group, and read and commit its offsets."""
        return group in self.groups


EVERYTHING: Final = Access(ALL_NAMES, ALL_NAMES)
"""What clients may use if there is no users file."""


# Credentials


class Credential(NamedTuple):
    """A SCRAM credential, in the order that scramp expects."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


def derive(
    mechanism: str, password: str, iterations: int = MIN_ITERATIONS, salt: bytes | None = None
) -> Credential:
    """Derive a credential from a password, with a random salt unless one is given.

    As in Kafka's `ScramFormatter`, and unlike in RFC 5802, the password is not normalized
    (SASLprep): Java's clients and librdkafka do not normalize it either.
    """
    digest = _HASHES[mechanism]
    salt = secrets.token_bytes(_SALT) if salt is None else salt
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    return Credential(salt, stored_key, hmac.digest(salted, b"Server Key", digest), iterations)


def entry_of(credentials: Mapping[str, Credential]) -> dict[str, dict[str, object]]:
    """Return credentials as the users file has them."""
    return {
        mechanism: {
            "salt": base64.b64encode(credential.salt).decode(),
            "stored_key": base64.b64encode(credential.stored_key).decode(),
            "server_key": base64.b64encode(credential.server_key).decode(),
            "iterations": credential.iterations,
        }
        for mechanism, credential in credentials.items()
    }


@dataclass(frozen=True, slots=True)
class User:
    """A user.

    Attributes:
        name: The user name, or the distinguished name of a client certificate.
        credentials: By mechanism. Empty: the user logs in by a client certificate.
        access: What the user may use.
        bytes_per_second: Cap for all connections of the user together; None for no cap.
    """

    name: str
    credentials: Mapping[str, Credential] = field(default_factory=dict)
    access: Access = Access()
    bytes_per_second: int | None = None


class Users:
    """All users of a users file. Immutable."""

    def __init__(self, users: Mapping[str, User]) -> None:
        self._users = users
        self._typical: dict[str, Credential] = {}
        secret = hashlib.sha256()
        for user in users.values():
            for mechanism, credential in user.credentials.items():
                self._typical.setdefault(mechanism, credential)
                secret.update(credential.stored_key + credential.server_key)
        # From this follow the credentials that unknown users are given. They are the same in each
        # endpoint with this file, and after a restart: a salt that differed between the endpoints
        # behind one address would show that the user is unknown.
        self._secret = secret.digest() if self._typical else _SECRET

    def __len__(self) -> int:
        return len(self._users)

    def get(self, name: str) -> User | None:
        """Return a user; None if it is not in the file."""
        return self._users.get(name)

    def credential(self, name: str, mechanism: str) -> Credential:
        """Return the user's credential, or one that no password matches.

        An unknown user gets a credential like a known user's. The exchange of messages, and its
        duration, are then the same as with a wrong password.
        """
        # Also for known users, for whom it is not used: the time of the answer must not differ.
        impossible = self._impossible(name, mechanism)
        user = self._users.get(name)
        known = None if user is None else user.credentials.get(mechanism)
        return known or impossible

    def has_password(self, name: str, password: str) -> bool:
        """Return whether this is the password of a user, by the first credential of the user."""
        user = self._users.get(name)
        mechanisms = (user.credentials if user is not None else {}) or self._typical
        mechanism = next(iter(mechanisms), SCRAM_MECHANISMS[0])
        known = self.credential(name, mechanism)
        with _DERIVATIONS:
            derived = derive(mechanism, password, known.iterations, known.salt)
        return hmac.compare_digest(derived.stored_key, known.stored_key)

    def _impossible(self, name: str, mechanism: str) -> Credential:
        typical = self._typical.get(mechanism)
        size = _SALT if typical is None else len(typical.salt)
        iterations = MIN_ITERATIONS if typical is None else typical.iterations
        digest = _HASHES[mechanism]

        def derived(purpose: str) -> bytes:
            return hmac.digest(self._secret, f"{purpose} {mechanism} {name}".encode(), digest)

        salt = (derived("salt") * (size // len(derived("salt")) + 1))[:size]
        return Credential(salt, derived("stored key"), derived("server key"), iterations)


# The file


def _base64(value: object) -> bytes:
    if not isinstance(value, str):
        raise ValueError("must be text in base64")  # noqa: TRY004 -- pydantic takes ValueError only
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("must be text in base64") from None


def _salt(value: bytes) -> bytes:
    if len(value) < _MIN_SALT:
        raise ValueError(f"must have at least {_MIN_SALT} bytes")
    return value


def _name_list(value: list[str]) -> list[str]:
    for name in value:
        if not name or "*" in name[:-1]:
            raise ValueError("must be names, or prefixes with one * at their end")
    return value


def _rate(value: object) -> int:
    rate = parse_size(value)
    if not rate:
        raise ValueError("must be at least 1")
    return rate


_Key = Annotated[bytes, BeforeValidator(_base64)]
_NameList = Annotated[list[str], AfterValidator(_name_list)]
_STRICT: Final = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class _CredentialEntry(BaseModel):
    model_config = _STRICT
    salt: Annotated[_Key, AfterValidator(_salt)]
    stored_key: _Key
    server_key: _Key
    iterations: Annotated[int, Field(ge=MIN_ITERATIONS, le=MAX_ITERATIONS)]

    def credential(self) -> Credential:
        return Credential(self.salt, self.stored_key, self.server_key, self.iterations)


class _UserEntry(BaseModel):
    model_config = _STRICT
    sha_256: _CredentialEntry | None = Field(None, alias="SCRAM-SHA-256")
    sha_512: _CredentialEntry | None = Field(None, alias="SCRAM-SHA-512")
    topics: _NameList = []
    groups: _NameList = []
    max_bytes_per_second: Annotated[int, BeforeValidator(_rate)] | None = None

    def user(self, name: str) -> User:
        entries = zip(SCRAM_MECHANISMS, (self.sha_256, self.sha_512), strict=True)
        return User(
            name,
            {mechanism: entry.credential() for mechanism, entry in entries if entry is not None},
            Access(_names(self.topics), _names(self.groups)),
            self.max_bytes_per_second,
        )


class _File(BaseModel):
    model_config = _STRICT
    users: dict[str, _UserEntry]


def _names(listed: list[str]) -> Names:
    prefixes = (name[:-1] for name in listed if name.endswith("*"))
    exact = (name for name in listed if not name.endswith("*"))
    return Names(frozenset(exact), tuple(sorted(prefixes)))


def read_users(path: Path) -> Users:
    """Read a users file.

    Raises:
        ConfigurationError: The file is missing or wrong. There is one line for each problem, with
            the key and the line of the file, and without any value.
    """
    layer = yaml_layer(read_config_text(path), str(path))
    raise_problems(layer.problems, layer.origins)
    try:
        file = _File.model_validate(layer.values)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        raise_problems((_problem(dict(detail)) for detail in details), layer.origins)
        raise
    users = {name: entry.user(name) for name, entry in file.users.items()}
    raise_problems(
        (problem for user in users.values() for problem in _contradictions(user)), layer.origins
    )
    if not users:
        raise ConfigurationError(f"{path}: has no users")
    return Users(users)


def _contradictions(user: User) -> list[Problem]:
    path: SettingPath = ("users", user.name)
    if not user.name or not user.name.isprintable() or "\0" in user.name:
        return [Problem(path, "the name must not be empty or have control characters")]
    if unicodedata.normalize("NFKC", user.name) != user.name:
        return [Problem(path, "write the name in Unicode's form NFKC, as SCRAM compares names")]
    return [
        Problem((*path, mechanism, name), f"must have {size} bytes for {mechanism}")
        for mechanism, credential in user.credentials.items()
        for size in (hashlib.new(_HASHES[mechanism]).digest_size,)
        for name in ("stored_key", "server_key")
        if len(getattr(credential, name)) != size
    ]


def _problem(detail: dict[str, Any]) -> Problem:
    path = tuple(detail["loc"])
    kind = detail["type"]
    if kind == "extra_forbidden":
        hint = ""
        if "pass" in str(path[-1]).lower():
            hint = ": passwords are not stored; `sidetier scram-credential` derives a credential"
        elif len(path) == 1:
            hint = ": entries of users must be indented below `users:`"
        return Problem(path, f"no such key{hint}")
    if kind == "missing":
        return Problem(path, "is required")
    if kind == "value_error":
        return Problem(path, str(detail["ctx"]["error"]))
    message = str(detail["msg"])
    return Problem(path, message[:1].lower() + message[1:])
