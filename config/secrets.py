"""Which settings hold secrets, and texts without the secrets in them."""

import re
from typing import Final

REDACTED: Final = "[redacted]"

# ruff: noqa: S105 -- patterns of names

SECRET_PROPERTY: Final = (
    r"^(.*[._-])?(password|passwd|passphrase|secret|token|credentials?|key[._-]pem|private[._-]key"
    r"|(account|access|api|secret)[._-]key|keystore[._-]key|jaas[._-]config|user[._-]info"
    r"|connection[._-]string)$"
)
"""Names whose value is a secret. The end of a name decides: `...token.endpoint.url`,
`...private.key.file` and `...client.id` name a place or an identity. The JSON schema holds this
pattern, and Go (Helm) reads it: no look-around."""

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
"""What librdkafka redacts besides when it dumps its configuration: not shown, but no secrets that
have to be given by reference. A test asks the installed librdkafka."""

_USER_INFO: Final = re.compile(r"(?<=://)[^/?#\s@]*:[^/?#\s]*@")
_QUERY_SECRET: Final = re.compile(
    r"([?&;][^=&;\s]*(?:password|passwd|secret|token|signature|sig|credential|key)[^=&;\s]*=)[^&;#\s]+",
    re.IGNORECASE,
)


def is_secret_property(name: str) -> bool:
    """Whether the value of a property of this name is a secret, to be given by reference only."""
    return _SECRET_PROPERTY.match(name) is not None


def is_sensitive_property(name: str) -> bool:
    """Whether the value of a property of this name is not to be shown."""
    return name in _LIBRDKAFKA_SENSITIVE or is_secret_property(name)


def redacted(text: str) -> str:
    """The text without passwords and query-string secrets in the URLs in it."""
    text = _USER_INFO.sub(f"{REDACTED}@", text)
    return _QUERY_SECRET.sub(rf"\g<1>{REDACTED}", text)
