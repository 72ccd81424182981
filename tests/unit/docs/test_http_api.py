"""docs/http-api.md has the paths, parameters, status codes and fields of the real handlers."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from sidetier.endpoint.service import EndpointSettings, serving
from sidetier.segments.offsets import Offset
from sidetier.storage.fake import FakeStorage
from sidetier.telemetry.fleet import Fleet
from sidetier.telemetry.metrics import create_registry
from sidetier.telemetry.pages import Application, endpoint_status, partition_page
from sidetier.telemetry.partition_page import (
    _ORDERS,
    DEFAULT_LIMIT,
    MAX_ROWS,
    ShownState,
    page_of,
    parse_query,
)
from sidetier.telemetry.static_files import paths_of, static_file
from sidetier.telemetry.status import (
    ClusterSnapshotStatus,
    DrillStatus,
    HeldError,
    LocalRetentionStatus,
    PartitionState,
    PinnedRange,
    Role,
    StatusSnapshot,
)
from tests.harness.fake_leaders import leaders
from tests.harness.joined_logs import archived, both, written
from tests.harness.made_archive import access_to
from tests.harness.markdown import text_of
from tests.harness.status_samples import ARCHIVED, UPLOADING, snapshot_of

LISTEN = EndpointSettings(("127.0.0.1", 0))
PAGE = text_of(Path("docs/http-api.md"))
FULL = replace(
    snapshot_of(UPLOADING, ARCHIVED),
    pins=(PinnedRange("t", 0, Offset(0), Offset(1), 2),),
    held_errors=(HeldError("x", "y", 1),),
    cluster_snapshots=(ClusterSnapshotStatus("topics", 1.0, stored=True),),
    local_retention=(LocalRetentionStatus("t", "r", 1),),
    last_drill=DrillStatus(1, succeeded=True, last_successful_ms=1),
)


class Source:
    def snapshot(self, *, with_partitions: bool = True) -> StatusSnapshot:  # noqa: ARG002 -- the port's
        return FULL


def section(heading: str) -> str:
    """Return the text below a heading, up to the next one."""
    _, found, rest = PAGE.partition(f"\n{heading}\n")
    assert found, heading
    return re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> list[list[str]]:
    """Return the cells of the tables of a text, without heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [re.split(r"(?<!\\) *\| *", line.strip("| ")) for line in lines]
    rules = {i for i, row in enumerate(cells) if set(row[0]) == {"-"}}
    return [row for i, row in enumerate(cells) if i not in rules and i + 1 not in rules]


def named(heading: str) -> set[str]:
    """Return the names in the first column of the tables below a heading."""
    return {name for row in rows(section(heading)) for name in re.findall(r"`(.+?)`", row[0])}


def ask(
    path: str, *, method: str = "GET", token: str | None = None, **headers: str
) -> tuple[int, Any]:
    """Return the status code and the JSON of an answer; None for other content."""
    application = Application(create_registry(), Source(), None if token is None else lambda: token)
    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)
    environ |= {"PATH_INFO": path.partition("?")[0], "QUERY_STRING": path.partition("?")[2]}
    environ |= {"REQUEST_METHOD": method, **headers}
    told: list[str] = []
    kinds: dict[str, str] = {}

    def respond(status: str, given: list[tuple[str, str]], *_: object) -> Callable[..., Any]:
        told.append(status)
        kinds.update(given)
        return lambda _: None

    body = b"".join(application(environ, respond))
    is_json = body and kinds["Content-Type"].startswith("application/json")
    return int(told[0].split()[0]), json.loads(body) if is_json else None


def test_paths_are_those_of_the_server() -> None:
    known = {*ask("/no-such-path")[1]["paths"], *paths_of("partitions")}
    documented = set(
        re.findall(r"`(/[\w./]*)`", "\n".join(r[0] + r[1] for r in rows(section("## Paths"))))
    )
    assert documented == known
    tokens = {row[0].strip("`"): row[2] == "yes" for row in rows(section("## Paths"))}
    for path, is_required in tokens.items():
        assert (ask(path, token="s3cret")[0] == 401) == is_required, path


def test_status_codes_are_those_of_the_handlers() -> None:
    etag = static_file("/", "partitions").etag
    seen = {
        ask("/api/partitions")[0],
        ask("/", HTTP_IF_NONE_MATCH=etag)[0],
        ask("/api/partitions?limit=0")[0],
        ask("/api/partitions", token="s3cret")[0],
        ask("/api/partitions", HTTP_HOST="evil.com")[0],
        ask("/no-such-path")[0],
        ask("/healthz", method="POST")[0],
        503,  # the tests of the probes
    }
    assert {int(row[0]) for row in rows(section("## Status codes"))} == seen


def test_parameters_are_those_of_the_parser() -> None:
    parameters = {row[0].strip("`"): row for row in rows(section("## Parameters"))}
    assert set(parameters) == {"offset", "limit", "sort", "topic", "state"}
    assert set(re.findall(r"`(\w+)`", parameters["sort"][1])) == set(_ORDERS)
    assert parameters["sort"][2] == "`severity`"
    assert parameters["limit"][1].endswith(f"1 to {MAX_ROWS}")
    assert parameters["limit"][2] == str(DEFAULT_LIMIT)
    default = parse_query("sort=")
    assert default is not None
    assert (default.offset, default.limit, default.sort) == (0, DEFAULT_LIMIT, "severity")


def plain() -> Any:  # noqa: ANN401 -- JSON
    return ask("/api/partitions")[1]


def paged() -> Any:  # noqa: ANN401 -- JSON
    return ask("/api/partitions?limit=5")[1]


def fleet() -> dict[str, Any]:
    query = parse_query("limit=5")
    assert query is not None
    merged = Fleet(["b1:1"], None, timeout=30, ask=lambda *_: partition_page(page_of(FULL, query)))
    return merged.page(query)


def test_fields_of_the_answer() -> None:
    both = named("## The answer")
    assert both | named("### Only without pages") == plain().keys()
    assert both | named("### Only on a page") == paged().keys()
    assert paged()["page"].keys() == {"offset", "limit", "matching"}
    assert named("### Partitions") == paged()["partitions"][0].keys()
    assert named("### Partitions") - {"shown_state"} == plain()["partitions"][0].keys()


def parts() -> Iterator[tuple[str, Any]]:
    yield "### Segments", paged()["partitions"][0]["segments"][0]
    yield "### Totals", paged()["totals"]
    yield "### Conditions", paged()["conditions"][0]
    yield "### Held errors", paged()["held_errors"][0]
    yield "### Cluster snapshots", paged()["cluster_snapshots"][0]
    yield "### Local retention", paged()["local_retention"][0]
    yield "### Last drill", paged()["last_drill"]
    yield "### Pins", plain()["pins"][0]
    yield "### Sidecars", fleet()["fleet"]["sidecars"][0]


@pytest.mark.parametrize(("heading", "value"), list(parts()), ids=lambda value: str(value)[:20])
def test_fields_of_a_part(heading: str, value: dict[str, Any]) -> None:
    assert named(heading) == value.keys()


def test_fields_of_a_fleet() -> None:
    answer = fleet()
    assert named("## All brokers") == answer["partitions"][0].keys() - named("### Partitions")
    lacking = {"followed_partitions", "followed_pinned_segments", "local_retention"}
    text = section("## All brokers")
    assert all(f"`{name}`" in text for name in lacking)
    own = named("## The answer") | named("### Only on a page")
    assert answer.keys() == (own - lacking) | {"fleet"}
    assert answer["fleet"].keys() == {"problems", "clusters", "sidecars"}
    assert answer["page"].keys() == {"offset", "limit", "matching", "reachable"}


def test_fields_of_an_endpoint() -> None:
    with leaders(1, {0: 1}) as cluster:
        written(cluster, 20)
        with (
            both(archived(0, 5), cluster) as read,
            serving(access_to(FakeStorage()), LISTEN) as endpoint,
        ):
            assert read.read(("t", 0, 20)), "a client waits at the end"
            live: Any = read.live.status()
            status: Any = endpoint_status(endpoint.snapshot(), endpoint.status())
            assert named("## Kafka endpoint") == status.keys()
            (store,) = status["stores"]
            assert named("### Stores") == store.keys()
            assert named("### Live cluster") == live.keys()
            assert named("### Brokers") == live["brokers"][0].keys()
            assert named("### Followed partitions") == live["followed"][0].keys()
            (condition,) = status["conditions"]
            assert condition["name"] in section("## Kafka endpoint")


def test_values_of_states_and_roles() -> None:
    values = {row[0].strip("`"): row[1] for row in rows(section("### Partitions"))}
    assert set(re.findall(r"`(\w+)`", values["state"])) == set(PartitionState)
    assert set(re.findall(r"`(\w+)`", values["shown_state"])) == set(ShownState)
    assert set(re.findall(r"`(\w+)`", values["role"])) == set(Role)
