from pathlib import Path

import pytest

from sidetier.config.model import Config
from sidetier.config.startup import LocalMachine, missing_log_dirs, with_found_log_dirs


def configured(*log_dirs: str | Path) -> Config:
    return Config.model_validate(
        {
            "cluster": {"name": "a"},
            "log_dirs": [str(path) for path in log_dirs],
            "storage": {"url": "s3://b"},
        }
    )


def log_dir(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "meta.properties").touch()
    return path


def test_pattern_is_replaced_by_the_log_dirs_that_it_matches(tmp_path: Path) -> None:
    second, first = log_dir(tmp_path / "data-1/kafka-log3"), log_dir(tmp_path / "data-0/kafka-log3")
    (tmp_path / "data-2" / "kafka-log3").mkdir(parents=True)  # no broker has made it
    plain = tmp_path / "plain"
    config = with_found_log_dirs(configured(plain, tmp_path / "*" / "kafka-log*"))
    assert config.log_dirs == (plain, first, second)


def test_pattern_without_a_match_stays_and_is_missing(tmp_path: Path) -> None:
    config = with_found_log_dirs(configured(tmp_path / "kafka-log*"))
    assert config.log_dirs == (tmp_path / "kafka-log*",)
    assert missing_log_dirs(config, LocalMachine()) == config.log_dirs


def test_file_system_is_not_searched_without_patterns(tmp_path: Path) -> None:
    def refuse(_: str) -> list[str]:
        raise AssertionError

    config = configured(tmp_path)
    assert with_found_log_dirs(config, refuse) is config


def test_log_dir_without_meta_properties_is_missing(tmp_path: Path) -> None:
    there, empty = log_dir(tmp_path / "there"), tmp_path / "empty"
    empty.mkdir()
    config = configured(there, empty, tmp_path / "no")
    assert missing_log_dirs(config, LocalMachine()) == (empty, tmp_path / "no")


def test_unreadable_directory_is_not_waited_for(tmp_path: Path) -> None:
    class Refusing(LocalMachine):
        def readable(self, path: Path) -> bool:  # noqa: ARG002 -- none is
            return False

    assert missing_log_dirs(configured(tmp_path), Refusing()) == ()


@pytest.mark.parametrize("pattern", ["/a/kafka-log?", "/a/kafka-log[0-9]"])
def test_found_log_dirs_are_sorted(pattern: str) -> None:
    found = ["/a/kafka-log2/meta.properties", "/a/kafka-log1/meta.properties"]
    config = with_found_log_dirs(configured(pattern), lambda _: found)
    assert [str(path) for path in config.log_dirs] == ["/a/kafka-log1", "/a/kafka-log2"]
