"""Settings with which a sidecar reacts within seconds instead of minutes."""

from typing import Any

QUICK: dict[str, Any] = {
    "storage": {
        "retry": {
            "attempts": 2,
            "first_delay": "50ms",
            "max_delay": "200ms",
            "max_elapsed": "3s",
        },
        "deadline": {"base": "1s", "connect": "1s", "silence": "1s"},
    },
}
"""Short timeouts of the store, so that the behaviour above one request's retries shows."""
