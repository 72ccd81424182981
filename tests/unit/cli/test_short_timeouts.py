"""Short timeouts: a user at a terminal learns of an unavailable store within seconds."""

from sidetier.cli.stores import with_short_timeouts
from sidetier.config.model import Config

SETTINGS = {"cluster": {"name": "a"}, "log_dirs": ["/k"], "storage": {"url": "s3://bucket"}}


def test_silent_store_is_given_up_within_seconds() -> None:
    config = Config.model_validate(SETTINGS, strict=False)
    soon = with_short_timeouts(config).storage
    assert soon.retry.attempts * soon.deadline.silence <= 10
    assert soon.retry.attempts * soon.deadline.connect <= 10
    assert (soon.retry.max_elapsed, soon.deadline.base) == (10, 10)
    assert config.storage.deadline.silence == 60


def test_shorter_configured_timeouts_are_kept() -> None:
    storage = {"url": "s3://b", "retry": {"attempts": 1, "max_elapsed": 2}, "deadline": {"base": 3}}
    soon = with_short_timeouts(
        Config.model_validate(SETTINGS | {"storage": storage}, strict=False)
    ).storage
    assert (soon.retry.attempts, soon.retry.max_elapsed, soon.deadline.base) == (1, 2, 3)
