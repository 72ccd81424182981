"""Names of settings that have secrets, and redaction of secrets in texts."""

import re
from typing import Final

REDACTED: Final = "[redacted]"

# ruff: noqa: S105 -- the strings are patterns of names, not secrets

SECRET_PROPERTY: Final = (
    r"^(.*[._-])?(password|passwd|passphrase|secret|token|credentials?|key[._-]pem|private[._-]key"
    r"|(account|access|api|secret)[._-]key|keystore[._-]key|jaas[._-]config|user[._-]info"
    r"|connection[._-]string)$"
)
"""Names whose value is a secret.

The end of a name decides: `...token.endpoint.url`, `...private.key.file` and `...client.id` name a
location or an identity. The JSON schema contains this pattern, and Go (Helm) evaluates it, so it
must not use look-around.
"""

_SECRET_PROPERTY: Final = re.compile(SECRET_PROPERTY, re.IGNORECASE)

_LIBRDKAFKA_SENSITIVE: Final = frozenset(
    {
        "sasl.oauthbearer.assertion.private.key.file",
        "sasl.oauthbearer.config",
        "sasl.username",
        "ssl.ca.pem",
        "ssl.key.location",
    }
)
"""Further properties that librdkafka redacts when it dumps its configuration. They are not shown,
but need not be given by reference. A test compares this set with the installed librdkafka.
"""

_USER_INFO: Final = re.compile(r"(?<=://)[^/?#\s@]*:[^/?#\s]*@")
_QUERY_SECRET: Final = re.compile(
    r"([?&;][^=&;\s]*(?:password|passwd|secret|token|signature|sig|credential|key)[^=&;\s]*=)[^&;#\s]+",
    re.IGNORECASE,
)


def is_secret_property(name: str) -> bool:
    """Whether the value of this property is a secret, which must be given by reference."""
    return _SECRET_PROPERTY.match(name) is not None


def is_sensitive_property(name: str) -> bool:
    """Whether the value of this property must not be shown."""
    return name in _LIBRDKAFKA_SENSITIVE or is_secret_property(name)


def redacted(text: str) -> str:
    """Return the text without passwords and query-string secrets in its URLs."""
    text = _USER_INFO.sub(f"{REDACTED}@", text)
    return _QUERY_SECRET.sub(rf"\g<1>{REDACTED}", text)
