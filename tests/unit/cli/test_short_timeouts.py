"""Short timeouts: a user at a terminal learns of an unavailable store within seconds."""

from sidetier.config.model import Config

SETTINGS = {"cluster": {"name": "a"}, "log_dirs": ["/k"], "storage": {"url": "s3://bucket"}}


def test_silent_store_is_given_up_within_seconds() -> None:
    config = Config.model_validate(SETTINGS, strict=False)
    soon = config.with_short_timeouts().storage
    assert (soon.retry.attempts, soon.retry.max_elapsed) == (3, 10)
    assert config.storage.deadline.silence == 60


def test_one_attempt_may_use_up_the_whole_time() -> None:
    """A share of it would be too short for each attempt at a store that is slow."""
    soon = Config.model_validate(SETTINGS, strict=False).with_short_timeouts().storage
    assert (soon.deadline.base, soon.deadline.silence, soon.deadline.connect) == (10, 10, 5)


def test_reads_of_records_keep_the_configured_deadline() -> None:
    storage = {"url": "s3://b", "deadline": {"base": 90, "silence": 80, "connect": 20}}
    config = Config.model_validate(SETTINGS | {"storage": storage}, strict=False)
    soon = config.with_few_retries().storage
    assert soon.deadline == config.storage.deadline
    assert (soon.retry.attempts, soon.retry.max_elapsed) == (3, 10)


def test_shorter_configured_timeouts_are_kept() -> None:
    storage = {"url": "s3://b", "retry": {"attempts": 1, "max_elapsed": 2}, "deadline": {"base": 3}}
    config = Config.model_validate(SETTINGS | {"storage": storage}, strict=False)
    soon = config.with_short_timeouts().storage
    assert (soon.retry.attempts, soon.retry.max_elapsed, soon.deadline.base) == (1, 2, 3)
