import json
from pathlib import Path

import pytest

from sidetier.config.catalogue import setting_names
from sidetier.config.loading import LoadedConfig, load
from sidetier.config.pinterest import KEYS, known_key
from sidetier.config.properties_file import Property, parse_properties
from sidetier.segments.errors import ConfigurationError

P = "ts.segment.uploader."
FLAGS = ["log_dirs=[/data]", "storage.url=s3://bucket/prefix"]


def loaded(tmp_path: Path, text: str, flags: list[str] | None = None) -> LoadedConfig:
    path = tmp_path / "my_cluster.properties"
    path.write_text(text, encoding="utf-8")
    return load([path], {}, FLAGS if flags is None else flags)


def test_supported_keys_are_converted(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        f"{P}kafka.topics.include=orders.*, pay.*\n"
        f"{P}kafka.topics.exclude=\n"
        f"{P}offset.reset.strategy=LATEST\n"
        f"{P}upload.thread.count=3\n"
        f"{P}upload.timeout.ms=60000\n"
        f"{P}s3.prefix.entropy.bits=5\n",
    ).config
    assert config.cluster.name == "my_cluster"
    assert config.topics.include == ("orders.*", "pay.*")
    assert config.topics.exclude == ()
    assert config.uploader.offset_reset == "latest"
    assert config.uploader.threads == 3
    assert config.storage.deadline.base == 60.0
    assert config.storage.prefix_entropy_bits == 5


def test_pinterests_default_layout_is_kept_without_the_key(tmp_path: Path) -> None:
    found = loaded(tmp_path, f"{P}kafka.topics.include=.*\n")
    assert found.config.storage.prefix_entropy_bits == -1
    assert found.origin(("storage", "prefix_entropy_bits")).startswith("Pinterest's default")
    assert found.config.uploader.threads == 8


def test_values_have_file_and_line_as_source(tmp_path: Path) -> None:
    found = loaded(tmp_path, f"# first\n\n{P}upload.thread.count=3\n")
    origin = found.origin(("uploader", "threads"))
    assert origin == f"{tmp_path / 'my_cluster.properties'}:3"


def test_flags_take_precedence_over_the_file(tmp_path: Path) -> None:
    flags = [*FLAGS, "uploader.threads=5", "cluster.name=other"]
    config = loaded(tmp_path, f"{P}upload.thread.count=3\n", flags).config
    assert (config.uploader.threads, config.cluster.name) == (5, "other")


@pytest.mark.parametrize("key", [key.key for key in KEYS if key.fate == "ignored"])
def test_ignored_keys_cause_a_warning(key: str, tmp_path: Path) -> None:
    found = loaded(tmp_path, key.replace("<topic>", "my.topic") + "=7200\n")
    [warning] = found.warnings
    assert key.replace("<topic>", "my.topic") in warning
    assert ":1) is ignored" in warning


def test_retention_is_taken_with_topics_before_the_rule_for_all(tmp_path: Path) -> None:
    lines = (
        f"{P}manager.gc.retention.seconds=259200\n"
        f"{P}manager.gc.my.topic.retention.seconds=7200\n"
        f"{P}segment.manager.gc.pay-x.retention.seconds=60\n"
    )
    retention = loaded(tmp_path, lines).config.retention
    rules = {topic: retention.of_topic(topic) for topic in ("my.topic", "myxtopic", "pay-x", "a")}
    ages = {topic: rule and rule.age for topic, rule in rules.items()}
    assert ages == {"my.topic": 7200, "myxtopic": 259200, "pay-x": 60, "a": 259200}


def test_without_a_retention_key_nothing_is_ever_deleted(tmp_path: Path) -> None:
    """Pinterest's uploader deletes after three days in this case."""
    assert loaded(tmp_path, "").config.retention.store == ()


def test_retention_of_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must be at least 1, not '0'"):
        loaded(tmp_path, f"{P}manager.gc.retention.seconds=0\n")


@pytest.mark.parametrize("key", [key.key for key in KEYS if key.fate == "refused"])
def test_unsupported_keys_are_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=key):
        loaded(tmp_path, f"{key}=x\n")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"{P}upload.thread.counts=3", "did you mean ts.segment.uploader.upload.thread.count"),
        (f"{P}upload.thread.count=many", "must be a whole number, not 'many'"),
        (f"{P}upload.thread.count=0", "must be at least 1"),
        (f"{P}offset.reset.strategy=none", "must be EARLIEST or LATEST"),
        (f"{P}upload.thread.count=1\n{P}upload.thread.count=2", "occurs twice, on lines 1 and 2"),
        (f"{P}kafka.topics.include=", "must have at least 1 entry"),
        (f"{P}kafka.topics.include=(", "must be a regular expression"),
    ],
)
def test_errors_name_file_and_line(line: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"my_cluster\.properties:") as caught:
        loaded(tmp_path, line + "\n")
    assert words in str(caught.value)


def test_every_setting_in_the_table_exists() -> None:
    assert {key.setting for key in KEYS if key.fate == "taken"} <= set(setting_names())
    assert not any(key.setting for key in KEYS if key.fate != "taken")


def test_every_key_of_the_table_is_recognised() -> None:
    for key in KEYS:
        assert known_key(key.key.replace("<topic>", "a.b-c_d")) == key


class TestEndpoints:
    def write(self, tmp_path: Path, document: object) -> None:
        (tmp_path / "my_cluster.json").write_text(json.dumps(document), encoding="utf-8")

    def test_default_and_override_locations_are_converted(self, tmp_path: Path) -> None:
        place = {"ts_bucket": "b2", "ts_base_prefix": "p2"}
        document = {"ts_bucket": "b", "ts_base_prefix": "p/q", "overrides": {"my.topic": place}}
        self.write(tmp_path, document)
        storage = loaded(tmp_path, "", ["log_dirs=[/data]"]).config.storage
        assert storage.target("other").url == "s3://b/p/q"
        assert storage.target("my.topic").url == "s3://b2/p2"
        assert storage.target("myxtopic").url == "s3://b/p/q"

    def test_public_and_private_topics_are_converted(self, tmp_path: Path) -> None:
        topics = {"secret": {"pii": True}, "open": {"pii": False}}
        document = {"bucket_public": "a", "bucket_pii": "z", "prefix": "p", "topics": topics}
        self.write(tmp_path, document)
        storage = loaded(tmp_path, "", ["log_dirs=[/data]"]).config.storage
        assert [storage.target(t).url for t in ("secret", "open", "x")] == [
            "s3://z/p",
            "s3://a/p",
            "s3://a/p",
        ]

    @pytest.mark.parametrize(
        "document", [[], {}, {"ts_bucket": 1, "ts_base_prefix": "p"}, {"bucket_public": "a"}, None]
    )
    def test_other_json_forms_are_refused(self, document: object, tmp_path: Path) -> None:
        self.write(tmp_path, document)
        with pytest.raises(ConfigurationError, match=r"my_cluster\.json.*two JSON forms"):
            loaded(tmp_path, "")


class TestPropertiesFormat:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("a=b", [Property("a", "b", 1)]),
            ("  a : b ", [Property("a", "b ", 1)]),
            ("a b=c", [Property("a", "b=c", 1)]),
            ("a", [Property("a", "", 1)]),
            ("# c\n! d\n\na=1", [Property("a", "1", 4)]),
            ("a=1,\\\n   2\nb=3", [Property("a", "1,2", 1), Property("b", "3", 3)]),
            ("a=x\\\\\nb=y", [Property("a", "x\\", 1), Property("b", "y", 2)]),
            ("a\\=b=c", [Property("a=b", "c", 1)]),
            ("a=\\u00e9\\t\\.", [Property("a", "é\t.", 1)]),
            (
                "a=1\r\nb=2\rc=3",
                [Property("a", "1", 1), Property("b", "2", 2), Property("c", "3", 3)],
            ),
            ("a=1\\", [Property("a", "1", 1)]),
            ("", []),
        ],
    )
    def test_properties_are_parsed_like_in_java(self, text: str, expected: list[Property]) -> None:
        assert list(parse_properties(text, "f")) == expected

    def test_broken_escape_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match=r"f:2: \\u must be followed"):
            parse_properties("a=1\nb=\\u00g1", "f")
