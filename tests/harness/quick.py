"""Settings with which a sidecar notices in seconds what it would notice in minutes."""

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
"""The store is given up soon, so that what lies above the tries of one request shows."""
