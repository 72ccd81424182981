"""The topics that a mirror copies, their names, and the refusals."""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace

import pytest

from sidetier.mirror.topics.catalog import BrokerTopics, Catalog
from sidetier.mirror.topics.planning import CatalogOptions
from sidetier.mirror.topics.rules import (
    Lineage,
    MirrorNames,
    TopicRules,
    compiled,
    decode_lineage,
    lineage_of_copy,
    loop_problem,
    may_restart,
    name_problems,
    partition_problem,
    progress_problem,
    timestamp_problem,
    was_added,
)
from sidetier.segments.errors import ConfigurationError, KafkaApiError
from sidetier.wire.cluster import Cluster, Route
from sidetier.wire.protocol import ApiKey


def rules(*include: str, exclude: tuple[str, ...] = (), rename: str | None = None) -> TopicRules:
    pairs = () if rename is None else ((re.compile("(.*)"), rename),)
    return TopicRules(tuple(map(re.compile, include)), tuple(map(re.compile, exclude)), pairs)


def test_patterns_match_whole_names_and_leave_out_internal_topics() -> None:
    topics = ["orders", "orders-eu", "payments", "__consumer_offsets", "sidetier-mirror-x-offsets"]
    assert rules("orders").targets(topics) == {"orders": "orders"}
    assert set(rules(".*").targets(topics)) == {"orders", "orders-eu", "payments"}
    assert set(rules(".*", exclude=("orders.*",)).targets(topics)) == {"payments"}


def test_rule_renames_topics() -> None:
    assert rules("orders.*", rename=r"eu.\1").targets(["orders"]) == {"orders": "eu.orders"}


def test_topics_whose_copies_cannot_have_their_names_are_refused() -> None:
    (illegal,) = name_problems({"orders": "orders/x", "other": "other"}, {}).items()
    assert illegal == (
        "orders",
        "--rename gives topic orders the name 'orders/x', which no topic can have",
    )
    both = name_problems({"a": "all", "b": "all", "c": "c"}, {})
    assert both.keys() == {"a", "b"}
    assert "topics a and b the same name all" in both["a"]
    # A topic that was created later does not stop the one that is copied already.
    assert name_problems({"a": "all", "b": "all"}, {"all": "a"}).keys() == {"b"}


def test_an_invalid_pattern_is_reported_with_its_option() -> None:
    with pytest.raises(ConfigurationError, match=r"--topic '\('"):
        compiled("(", "--topic")


@pytest.mark.parametrize("name", ["", "a b", "x" * 101, "a/b"])
def test_name_of_a_mirror_must_be_valid_in_topics_and_groups(name: str) -> None:
    with pytest.raises(ConfigurationError, match="mirror name"):
        MirrorNames(name)


def test_transactional_ids_of_workers_differ() -> None:
    names = MirrorNames("dr")
    assert names.group == "sidetier-mirror-dr"
    assert names.transactional_id("a") == "sidetier-mirror-dr-a"
    with pytest.raises(ConfigurationError, match="--worker 'a b'"):
        names.transactional_id("a b")


def test_lineage_round_trips_through_its_text() -> None:
    lineage = Lineage("orders", ("A", "B"))
    assert decode_lineage(lineage.encoded()) == lineage
    assert decode_lineage("") is decode_lineage(None) is decode_lineage("{}") is None


def test_copy_of_a_copy_lists_both_clusters() -> None:
    there = {"orders": Lineage("orders", ("A",))}
    assert lineage_of_copy("orders", "B", there) == Lineage("orders", ("A", "B"))
    assert lineage_of_copy("other", "B", there) == Lineage("other", ("B",))


def test_two_mirrors_that_feed_each_other_are_refused() -> None:
    """A to B runs; B to A finds that the topic's records on B came from A."""
    back = lineage_of_copy("orders", "B", {"orders": Lineage("orders", ("A",))})
    problem = loop_problem(back, "orders", "A")
    assert problem is not None
    assert "(A → B → A)" in problem
    assert "--exclude" in problem


def test_ring_of_three_clusters_is_refused() -> None:
    there = {"orders": Lineage("orders", ("A", "B"))}
    assert loop_problem(lineage_of_copy("orders", "C", there), "orders", "A") is not None
    assert loop_problem(lineage_of_copy("orders", "C", there), "orders", "D") is None


def test_copy_within_one_cluster_needs_another_name() -> None:
    copy = lineage_of_copy("orders", "A", {})
    problem = loop_problem(copy, "orders", "A")
    assert problem is not None
    assert "--rename" in problem
    assert loop_problem(copy, "copy.orders", "A") is None
    again = lineage_of_copy("copy.orders", "A", {"copy.orders": copy})
    assert loop_problem(again, "copy.copy.orders", "A") is not None


def test_different_number_of_partitions_is_refused() -> None:
    assert partition_problem("a", "b", 3, 3) is None
    problem = partition_problem("a", "b", 3, 2)
    assert problem is not None
    assert "topic a has 3 partitions and b on the target 2" in problem


def test_target_that_sets_timestamps_is_refused() -> None:
    assert timestamp_problem("b", {"message.timestamp.type": "CreateTime"}) is None
    problem = timestamp_problem("b", {"message.timestamp.type": "LogAppendTime"})
    assert problem is not None
    assert "--accept-log-append-time" in problem


KEPT = Lineage("orders", ("A",), "source-1", "target-1")


@pytest.mark.parametrize(
    ("now", "problem"),
    [
        (KEPT, None),
        (replace(KEPT, clusters=("Z", "A")), None),
        (replace(KEPT, source_id=None, target_id=None), None),
        (replace(KEPT, source_id="source-2"), "created again on the source"),
        (replace(KEPT, target_id="target-2"), "created again on the target"),
        (replace(KEPT, topic="others"), "is the copy of topic orders of cluster A"),
        (replace(KEPT, clusters=("B",)), "not of orders of cluster B"),
    ],
)
def test_progress_continues_only_with_the_same_topics(now: Lineage, problem: str | None) -> None:
    result = progress_problem(now, KEPT, "copy")
    assert (result is None) if problem is None else (problem in (result or ""))


NEW_SOURCE = replace(KEPT, source_id="source-2")


@pytest.mark.parametrize(
    ("now", "kept", "expected"),
    [
        (NEW_SOURCE, [KEPT], True),
        (NEW_SOURCE, [NEW_SOURCE, KEPT], True),  # another worker has restarted the copy
        (KEPT, [KEPT], False),
        (NEW_SOURCE, [], False),
        # It is unknown whether this mirror has written the target topic, or it has not.
        (NEW_SOURCE, [replace(KEPT, target_id=None)], False),
        (replace(NEW_SOURCE, target_id=None), [KEPT], False),
        (replace(NEW_SOURCE, target_id="target-2"), [KEPT], False),
        (replace(NEW_SOURCE, topic="others"), [KEPT], False),
        (replace(NEW_SOURCE, clusters=("B",)), [KEPT], False),
    ],
)
def test_only_the_copy_of_a_recreated_topic_is_made_again(
    now: Lineage, kept: list[Lineage], *, expected: bool
) -> None:
    assert may_restart(now, kept) is expected


def test_lineage_of_an_older_release_has_no_topic_ids() -> None:
    text = '{"source_topic":"orders","clusters":["A"]}'
    assert decode_lineage(text) == Lineage("orders", ("A",))
    assert Lineage("orders", ("A",)).encoded() == text
    assert decode_lineage(KEPT.encoded()) == KEPT
    assert decode_lineage("[1]") is None


def test_partition_added_after_the_start_of_a_copy_is_recognised() -> None:
    two = replace(KEPT, partitions=2)
    assert decode_lineage(two.encoded()) == two
    assert was_added(2, [two])
    assert was_added(2, [replace(KEPT, partitions=4), two])
    assert not was_added(1, [two]), "another worker has only begun before this one"
    assert not was_added(2, [])
    assert not was_added(2, [KEPT]), "kept by an older release"


class MayNotDescribe(Cluster):
    """Refuses the settings of topic `refused`, and of all topics that are asked with it."""

    def __init__(self) -> None: ...

    def request(  # type: ignore[override]
        self, route: Route, api: ApiKey, /, *, resources: Collection[Mapping[str, str]]
    ) -> object:
        del route
        assert api is ApiKey.DESCRIBE_CONFIGS
        names = [resource["resource_name"] for resource in resources]
        if "refused" in names:
            raise KafkaApiError("no", code=29, name="TOPIC_AUTHORIZATION_FAILED", retry=False)
        entry = SimpleNamespace(name="max.message.bytes", value="1000", config_source=1)
        results = [SimpleNamespace(resource_name=name, configs=[entry]) for name in names]
        return SimpleNamespace(results=results)


def test_created_topic_that_may_not_be_described_does_not_stop_the_others() -> None:
    target = MayNotDescribe()
    catalog = Catalog(
        BrokerTopics(target), target, rules(".*"), MirrorNames("dr"), CatalogOptions()
    )
    assert catalog._sizes(["orders", "refused"]) == {"orders": 1000}
    assert catalog._sizes([]) == {}
