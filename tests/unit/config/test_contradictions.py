from typing import Any

import pytest

from sidetier.config.contradictions import contradictions, warnings
from sidetier.config.model import Config
from sidetier.config.problems import dotted


def config(**changed: object) -> Config:
    values: dict[str, Any] = {
        "cluster": {"name": "a"},
        "log_dirs": ["/data/1", "/data/2"],
        "storage": {"url": "s3://bucket"},
    }
    return Config.model_validate(values | changed)


def s3(**options: object) -> dict[str, Any]:
    return {"storage": {"url": "s3://bucket", "s3": options}}


def override(url: str, **options: object) -> dict[str, Any]:
    return {"storage": {"url": "s3://b", "overrides": [{"topics": "x", "url": url, "s3": options}]}}


def early(**limits: object) -> dict[str, Any]:
    broker = {"bootstrap_servers": "b:9092"}
    return {"broker": broker, "uploader": {"early": {"topics": ["t"], **limits}}}


SASL = {"connect": "z:2181", "sasl": {"username": "u"}}
KEYS = {"access_key_id": {"env": "A"}, "secret_access_key": {"env": "B"}}


def retention(local: dict[str, Any], *store: dict[str, Any]) -> dict[str, Any]:
    broker = {"bootstrap_servers": "b:9092"}
    return {"broker": broker, "retention": {"local": {"topics": ["t"], **local}, "store": store}}


@pytest.mark.parametrize(
    ("changed", "setting"),
    [
        ({"log_dirs": ["/a", "/b", "/a/"]}, "log_dirs[2]"),
        ({"log_dirs": ["/a", "/a/b"]}, "log_dirs[1]"),
        ({"log_dirs": ["/a/b/c", "/a/b"]}, "log_dirs[1]"),
        ({"storage": {"url": "file:///data/1"}}, "storage.url"),
        ({"storage": {"url": "file:///data/2/archive"}}, "storage.url"),
        ({"storage": {"url": "file:///data/x/../1/archive"}}, "storage.url"),
        ({"storage": {"url": "file:///data/%31/archive"}}, "storage.url"),
        ({"storage": {"url": "file:///data"}}, "storage.url"),
        ({"uploader": {"pins": {"spool": ["/s", "/data/1/s"]}}}, "uploader.pins.spool[1]"),
        ({"uploader": {"pins": {"spool": ["/data"]}}}, "uploader.pins.spool[0]"),
        ({"leadership": {"kraft": {"metadata_log": False}}}, "leadership.kraft.metadata_log"),
        ({"leadership": {"source": "zookeeper"}}, "leadership.zookeeper.connect"),
        ({"leadership": {"static": {"partitions": ["t-0"]}}}, "leadership.static.partitions"),
        ({"leadership": {"zookeeper": SASL}}, "leadership.zookeeper.sasl.password"),
        ({"leadership": {"zookeeper": {"tls": {"key_file": "/k"}}}}, "leadership.zookeeper.tls"),
        (
            {"uploader": {"high_watermark": {"checkpoint": False}}},
            "uploader.high_watermark.checkpoint",
        ),
        ({"topics": {"include": ["__consumer_offsets"]}}, "topics.include[0]"),
        ({"topics": {"include": ["a", "b"], "exclude": ["b", "a"]}}, "topics.exclude"),
        ({"topics": {"exclude": [".+"]}}, "topics.exclude"),
        (
            {"storage": {"url": "s3://b", "retry": {"first_delay": "20s"}}},
            "storage.retry.max_delay",
        ),
        ({"storage": {"url": "file:///x", "s3": {"region": "a"}}}, "storage.s3"),
        ({"storage": {"url": "s3://b", "hdfs": {"properties": {"a": "x"}}}}, "storage.hdfs"),
        ({"storage": {"url": "gs://b", "hdfs": {"config_dir": "/x"}}}, "storage.hdfs"),
        ({"storage": {"url": "s3://b", "gcs": {"storage_class": "NEARLINE"}}}, "storage.gcs"),
        ({"storage": {"url": "gs://b", "azure": {"account_name": "a"}}}, "storage.azure"),
        (override("file:///x", region="a"), "storage.overrides[0].s3"),
        (override("s3://c", sse_kms_key_id="k"), "storage.overrides[0].s3.sse_kms_key_id"),
        (s3(sse_kms_key_id="k"), "storage.s3.sse_kms_key_id"),
        (s3(sse_kms_key_id="k", sse="AES256"), "storage.s3.sse_kms_key_id"),
        (s3(part_size="2GiB"), "storage.s3.part_size"),
        (s3(ca_bundle="/ca.pem", endpoint_url="http://s"), "storage.s3.ca_bundle"),
        (s3(access_key_id={"env": "A"}), "storage.s3"),
        (s3(session_token={"env": "A"}), "storage.s3.session_token"),
        (s3(profile="p", **KEYS), "storage.s3.profile"),
        ({"uploader": {"early": {"topics": ["t"]}}}, "uploader.early.topics"),
        ({"uploader": {"tail": {"interval": "5s"}}}, "uploader.tail.interval"),
        (
            {
                "broker": {"bootstrap_servers": "b:9092"},
                "leadership": {"source": "static"},
                "uploader": {"early": {"topics": ["t"]}},
            },
            "uploader.early.topics",
        ),
        (retention({}), "retention.local.topics"),
        (
            {"retention": {"local": {"topics": ["t"], "age": "1d"}}},
            "retention.local.topics",
        ),
        (retention({"topics": ["__x"], "age": "1d"}), "retention.local.topics[0]"),
        (
            retention({"topics": ["a", "t"], "age": "7d"}, {"topics": ["t|u"], "age": "7d"}),
            "retention.local.topics[1]",
        ),
        (
            retention({"topics": ["x.*"], "bytes": "2GiB"}, {"topics": ["x.*"], "bytes": "1GiB"}),
            "retention.local.topics[0]",
        ),
    ],
)
def test_contradicting_setting_is_named(changed: dict[str, Any], setting: str) -> None:
    found = contradictions(config(**changed))
    assert {dotted(problem.path) for problem in found} == {setting}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"storage": {"url": "file:///data-archive"}},
        {"log_dirs": ["/data/1", "/data/10"]},
        {"leadership": {"source": "zookeeper", "zookeeper": {"connect": "z:2181/kafka"}}},
        {"leadership": {"source": "static", "kraft": {"metadata_log": False}}},
        {"leadership": {"zookeeper": {"sasl": {"mechanism": "GSSAPI"}}}},
        {"uploader": {"max_bytes_per_second": "1MiB"}},
        {
            "broker": {"bootstrap_servers": "b:1"},
            "leadership": {"kraft": {"metadata_log": False}},
            "uploader": {"high_watermark": {"checkpoint": False}},
        },
        {"topics": {"include": ["__consumer_offsets"], "internal": True}},
        {"topics": {"include": ["a.*"], "exclude": ["a.b"]}},
        retention({"age": "1d"}, {"topics": ["t"], "age": "7d"}),
        retention({"age": "7d", "bytes": "1GiB"}, {"topics": ["t"], "age": "7d"}),
        retention({"age": "7d"}, {"topics": ["u"], "age": "1d"}),
        s3(sse_kms_key_id="k", sse="aws:kms", **KEYS),
        {"storage": {"url": "hdfs://b/x", "hdfs": {"properties": {"dfs.replication": "2"}}}},
        {"storage": {"url": "gs://b", "gcs": {"storage_class": "NEARLINE"}}},
        {"storage": {"url": "abfs://b", "azure": {"account_name": "a"}}},
    ],
)
def test_compatible_settings_pass(changed: dict[str, Any]) -> None:
    assert contradictions(config(**changed)) == ()


def test_s3_options_for_an_override_of_a_file_store_are_no_mistake() -> None:
    storage = {
        "url": "file:///x",
        "s3": {"region": "r"},
        "overrides": [{"topics": "t", "url": "s3://b"}],
    }
    assert contradictions(config(storage=storage)) == ()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"storage": {"url": "memory://"}}, "everything stored is lost"),
        ({"broker": {"client": {"security.protocol": "SSL"}}}, "broker.client has no effect"),
        (
            {
                "storage": {
                    "url": "s3://a",
                    "overrides": [
                        {"topics": ".*", "url": "s3://b"},
                        {"topics": "x", "url": "s3://c"},
                    ],
                }
            },
            "those after it have no effect",
        ),
        (
            early(bytes="64KiB"),
            "bytes 64KiB: each GiB of records becomes 16,384 segments, which cost about 98,304",
        ),
        (
            early(age="10s"),
            "becomes 8,640 segments a day, which cost about 51,840 requests",
        ),
        (
            early(topics=["t.*"], overrides=[{"topics": "t1", "bytes": "64KiB"}]),
            "early.overrides[0].bytes 64KiB (t1): each GiB of records becomes 16,384 segments",
        ),
        (
            early(overrides=[{"topics": "u|t", "age": "1h"}, {"topics": "t", "age": "10s"}]),
            "early.overrides[1].age 10s (t): each partition that is written all the time becomes",
        ),
        (
            early(overrides=[{"topics": ".*", "age": "1h"}, {"topics": "t", "age": "2h"}]),
            "uploader.early.overrides[0] matches every topic: those after it have no effect",
        ),
        (
            early(topics=["a\\.b", "c.*"], overrides=[{"topics": "b", "age": "1h"}]),
            "overrides[0] has no effect: b matches no topic that uploader.early.topics selects",
        ),
        (
            early(topics=["a\\.b", "c"], overrides=[{"topics": "a-.*", "age": "1h"}]),
            "overrides[0] has no effect: a-.* matches no topic",
        ),
    ],
)
def test_unusual_setting_is_a_warning(changed: dict[str, Any], words: str) -> None:
    [warning] = warnings(config(**changed))
    assert words in warning


@pytest.mark.parametrize(
    "changed",
    [
        {},
        early(),
        early(bytes="1MiB", age="1m"),
        early(topics=["a\\.b"], overrides=[{"topics": "a\\.b", "age": "1h"}]),
        early(topics=["a\\.b", "c"], overrides=[{"topics": "a\\..*", "age": "1h"}]),
        early(topics=["c.*"], overrides=[{"topics": ".*d", "age": "1h"}]),
        early(topics=["c.*"], overrides=[{"topics": "cd", "age": "1h"}]),
        early(topics=["cde"], overrides=[{"topics": "c.e", "age": "1h"}]),
        early(topics=[], overrides=[{"topics": "t", "age": "1s"}]),
    ],
)
def test_ordinary_configuration_gives_no_warning(changed: dict[str, Any]) -> None:
    assert warnings(config(**changed)) == ()
