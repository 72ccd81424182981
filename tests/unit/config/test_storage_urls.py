"""Plug-ins that choose the storage URL of each topic."""

from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace

import pytest

from sidetier.archive.access import endpoint_provider
from sidetier.config import storage_urls
from sidetier.config.storage import S3Config, StorageConfig, StorageOverride, StorageProviderConfig
from sidetier.config.storage_urls import ENTRY_POINT_GROUP, PlugIn, load_plug_in
from sidetier.segments.errors import ConfigurationError


class ByTeam:
    """`pay.orders` is stored in `s3://team-pay`; topics without a dot in the default store."""

    def __init__(self, options: dict[str, str]) -> None:
        self.teams = options["teams"].split()
        self.asked: list[str] = []

    def url(self, topic: str) -> str | None:
        self.asked.append(topic)
        team, dot, _ = topic.partition(".")
        return f"s3://team-{team}/" if dot else None

    def urls(self) -> list[str]:
        return [f"s3://team-{team}" for team in self.teams]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry points of an environment; `test_plug_in.py` installs them from a wheel."""
    targets = {
        "by-team": f"{__name__}:ByTeam",
        "dict": "builtins:dict",
        "absent": "no_such_module_here:thing",
    }
    points = [EntryPoint(name, target, ENTRY_POINT_GROUP) for name, target in targets.items()]
    monkeypatch.setattr(storage_urls, "entry_points", lambda **_: EntryPoints(points))


def storage(teams: str = "pay ship") -> StorageConfig:
    return StorageConfig(
        url="s3://main",
        overrides=(StorageOverride(topics=r"pay\.secret", url="s3://vault"),),
        provider=StorageProviderConfig(name="by-team", options={"teams": teams}),
    )


def test_plug_in_is_asked_for_topics_that_no_override_matches() -> None:
    provider = endpoint_provider(storage())
    topics = ("pay.orders", "pay.secret", "ship.boxes", "other")
    urls = ["s3://team-pay", "s3://vault", "s3://team-ship", "s3://main"]
    assert [provider.endpoint(topic).url for topic in topics] == urls
    assert [storage().target(topic).url for topic in topics] == urls
    every = ["s3://main", "s3://vault", "s3://team-pay", "s3://team-ship"]
    assert [endpoint.url for endpoint in provider.endpoints] == every


def test_storage_settings_apply_to_the_plug_ins_urls() -> None:
    config = storage().model_copy(update={"s3": S3Config(region="eu-1")})
    place = endpoint_provider(config, connections=3).endpoint("pay.orders")
    assert (place.s3.region, place.s3.max_connections) == ("eu-1", 3)


def test_each_topic_is_asked_for_once() -> None:
    inner = ByTeam({"teams": "pay"})
    plug_in = PlugIn("by-team", inner)
    assert [plug_in.url("pay.a") for _ in range(3)] == ["s3://team-pay"] * 3
    assert inner.asked == ["pay.a"]


def test_url_missing_in_the_plug_ins_list_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"by-team: topic hr.staff: 's3://team-hr'"):
        storage().target("hr.staff")


@pytest.mark.parametrize("url", ["ftp://host/x", "s3://key:secret@bucket"])
def test_unusable_url_is_refused(url: str) -> None:
    plug_in = PlugIn("mine", SimpleNamespace(url=lambda _: url, urls=lambda: [url]))
    with pytest.raises(ConfigurationError, match="mine: topic t: must"):
        plug_in.url("t")


def test_failing_plug_in_is_named_and_asked_again() -> None:
    failures = [KeyError("down")]

    def url(_: str) -> str:
        if failures:
            raise failures.pop()
        return "s3://b"

    plug_in = PlugIn("mine", SimpleNamespace(url=url, urls=lambda: ["s3://b"]))
    with pytest.raises(ConfigurationError, match=r"storage.provider mine: topic t: 'down'"):
        plug_in.url("t")
    assert plug_in.url("t") == "s3://b"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("unknown", r"'unknown' is not installed; installed: absent, by-team, dict"),
        ("dict", "no methods"),
        ("absent", "no_such_module_here"),
        ("by-team", "teams"),
    ],
)
def test_plug_in_that_cannot_be_loaded_is_refused_with_a_reason(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        load_plug_in(name, {})
