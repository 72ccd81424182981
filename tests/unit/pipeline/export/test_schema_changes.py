"""Exports of topics whose producers change their schemas, with Confluent's own serializers."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from sidetier.cli.export import session
from sidetier.pipeline.export.errors import MisfitError
from sidetier.pipeline.export.sinks.files.options import FilesOptions
from sidetier.pipeline.export.values.registry import (
    RegistryConfig,
    SchemaKind,
    SchemaRegistry,
)
from sidetier.segments.errors import StoreUnavailableError
from sidetier.storage.factory import open_plain
from sidetier.storage.fake import FakeStorage
from sidetier.storage.settings import StorageEndpoint
from tests.harness.command_line import CommandLine
from tests.harness.diverged_archive import Between
from tests.harness.exported_files import (
    data_files,
    files_job,
    manifest_in,
    new_run,
    rows_of,
    run_once,
)
from tests.harness.intercepted_store import KilledError, MortalStore
from tests.harness.made_archive import MadeArchive
from tests.harness.record_batches import MadeBatch, MadeRecord
from tests.harness.schema_registry import FakeRegistry, serving

ADDED = {"name": "b", "type": ["null", "string"], "default": None}
V1 = {"type": "record", "name": "Order", "fields": [{"name": "a", "type": "int"}]}
V2 = {**V1, "fields": [*V1["fields"], ADDED]}
V3 = {**V2, "fields": [*V2["fields"], {**ADDED, "name": "c"}]}
CONTEXTS = {
    part: SerializationContext("orders", part) for part in (MessageField.VALUE, MessageField.KEY)
}
Serialize = Callable[[object, dict[str, Any]], bytes]


@pytest.fixture
def server() -> Iterator[FakeRegistry]:
    with serving() as registry:
        yield registry


@pytest.fixture
def client(server: FakeRegistry) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": server.url})


@pytest.fixture
def avro(client: SchemaRegistryClient) -> Serialize:
    """An Avro value as Confluent's serializer writes it; its schema is registered."""

    def serialize(schema: object, value: dict[str, Any]) -> bytes:
        found: bytes = AvroSerializer(client, json.dumps(schema))(
            value, CONTEXTS[MessageField.VALUE]
        )
        return found

    return serialize


def options(
    server: FakeRegistry,
    compatibility: str,
    kind: str = "avro",
    **more: Any,  # noqa: ANN401
) -> FilesOptions:
    latest = SchemaRegistry(RegistryConfig(url=server.url), SchemaKind(kind.upper())).latest(
        "orders-value"
    )
    value = {
        "format": kind,
        "registry": server.url,
        "subject": "orders-value",
        "schema_id": latest.id,
        "schema_text": latest.text,
        "compatibility": compatibility,
    }
    given = {"layout": "value", "value": value, **more}
    return FilesOptions.model_validate(given, strict=False)


def stored(values: Sequence[bytes | None], *, first: int = 0, into: MadeArchive) -> None:
    """Store one segment with these values."""
    records = [MadeRecord(first + at, 5, value=one) for at, one in enumerate(values)]
    into.segment(first, [MadeBatch((one,)) for one in records])
    into.mark(first, first + len(values))


def files_of(target: FakeStorage) -> dict[int, list[dict[str, Any]]]:
    """Rows by the first offset of their file."""
    found = data_files(target.contents())
    return {
        int(key.rpartition("+")[2].partition(".")[0]): rows_of(key, data)
        for key, data in found.items()
    }


@pytest.fixture
def orders(avro: Serialize) -> MadeArchive:
    """Offsets 0 to 7: the third version comes before the last record of the first version."""
    archive = MadeArchive()
    values = [
        avro(V1, {"a": 0}),
        avro(V1, {"a": 1}),
        avro(V2, {"a": 2, "b": "x"}),
        avro(V1, {"a": 3}),
        None,
        avro(V3, {"a": 5, "b": "y", "c": "z"}),
        avro(V2, {"a": 6, "b": "w"}),
        avro(V1, {"a": 7}),
    ]
    stored(values, into=archive)
    return archive


OWN = {
    0: [{"a": 0}, {"a": 1}],
    2: [{"a": 2, "b": "x"}],
    3: [{"a": 3}],
    5: [{"a": 5, "b": "y", "c": "z"}],
    6: [{"a": 6, "b": "w"}],
    7: [{"a": 7}],
}
NEWEST = {
    0: [{"a": 0}, {"a": 1}],
    2: [{"a": 2, "b": "x"}, {"a": 3, "b": None}],
    5: [
        {"a": 5, "b": "y", "c": "z"},
        {"a": 6, "b": "w", "c": None},
        {"a": 7, "b": None, "c": None},
    ],
}
OLDEST = {0: [{"a": at} for at in (0, 1, 2, 3, 5, 6, 7)]}
EXPECTED = [("none", OWN), ("backward", NEWEST), ("full", NEWEST), ("forward", OLDEST)]


@pytest.mark.parametrize(("compatibility", "files"), EXPECTED)
def test_rows_have_the_schema_that_confluents_sink_gives_them(
    orders: MadeArchive, server: FakeRegistry, compatibility: str, files: dict[int, Any]
) -> None:
    target = FakeStorage()
    made = options(server, compatibility, null_values="skip")
    with files_job(orders.store, target, made) as job:
        run_once(job)
    assert files_of(target) == files


@pytest.mark.parametrize(("compatibility", "files"), EXPECTED)
def test_rows_are_equal_in_runs_of_one_offset(
    orders: MadeArchive, server: FakeRegistry, compatibility: str, files: dict[int, Any]
) -> None:
    """A run's decisions follow from the state that earlier runs saved."""
    target = FakeStorage()
    made = options(server, compatibility, null_values="skip")
    for _ in range(9):
        with files_job(
            orders.store, target, made, most_offsets=1
        ) as job:  # each a process of its own
            run_once(job)
    rows = [row for file in files.values() for row in file]
    assert [row for file in files_of(target).values() for row in file] == rows
    assert len(files_of(target)) == 7


@pytest.mark.parametrize("compatibility", ["none", "backward", "forward"])
def test_whole_files_are_equal_for_any_chunk_size(
    orders: MadeArchive, server: FakeRegistry, compatibility: str
) -> None:
    """A schema change ends a file, and its records are not read again."""
    made = options(server, compatibility, null_values="skip", flush_size=2, whole_files=True)
    found = []
    for chunk in (None, 3, 5):
        target = FakeStorage()
        for _ in range(9):
            with files_job(orders.store, target, made, most_offsets=chunk) as job:
                run_once(job)
        found.append(files_of(target))
    assert found[0] == found[1] == found[2]
    assert len(found[0]) >= 3


@pytest.mark.parametrize("compatibility", ["none", "backward"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_export_killed_at_every_request_is_completed(
    orders: MadeArchive,
    server: FakeRegistry,
    compatibility: str,
    after: bool,  # noqa: FBT001
) -> None:
    made = options(server, compatibility, null_values="skip", topics_dir="t")
    whole, target = FakeStorage(), FakeStorage()
    with files_job(orders.store, whole, made) as job:
        run_once(job)
    lives, is_done = 0, False
    while not is_done:
        with (
            suppress(KilledError),
            files_job(orders.store, MortalStore(target, lives, after=after), made) as job,
        ):
            is_done = run_once(job) is None
        lives += 1
    assert data_files(target.contents(), "t/") == data_files(whole.contents(), "t/")
    assert lives > 5


def test_schema_change_while_an_export_follows_is_applied(
    avro: Serialize, server: FakeRegistry
) -> None:
    """Regression: the reader's schema was read once, and the new field was left out."""
    archive, target = MadeArchive(), FakeStorage()
    stored([avro(V1, {"a": 0})], into=archive)
    with files_job(archive.store, target, options(server, "none")) as job:
        run_once(job)
        stored([avro(V2, {"a": 1, "b": "kept"})], first=1, into=archive)
        run_once(job)
    assert files_of(target) == {0: [{"a": 0}], 1: [{"a": 1, "b": "kept"}]}


def test_state_keeps_the_schema_without_asking_the_registry_for_the_newest(
    avro: Serialize, server: FakeRegistry
) -> None:
    archive, target = MadeArchive(), FakeStorage()
    old = avro(V1, {"a": 1})
    stored([avro(V2, {"a": 0, "b": "x"})], into=archive)
    first = options(server, "backward")
    with files_job(archive.store, target, first) as job:
        run_once(job)
    assert manifest_in(target.contents()).schemas[0].value == first.value.schema_id
    stored([old], first=1, into=archive)
    avro(V3, {"a": 0, "b": None, "c": None})  # registered, and never produced
    with files_job(archive.store, target, options(server, "backward")) as job:
        run_once(job)
    assert files_of(target)[1] == [{"a": 1, "b": None}]


def test_version_that_cannot_be_read_as_the_newest_does_not_fit(
    avro: Serialize, server: FakeRegistry
) -> None:
    """As with Confluent's sink, whose task fails."""
    archive, target = MadeArchive(), FakeStorage()
    required = {**V1, "fields": [*V1["fields"], {"name": "must", "type": "string"}]}
    old, new = avro(V1, {"a": 0}), avro(required, {"a": 1, "must": "x"})
    stored([new, old], into=archive)
    made = options(server, "backward")
    with (
        files_job(archive.store, target, made) as job,
        pytest.raises(MisfitError, match=r"offset 1.*No default value for field must"),
    ):
        run_once(job)
    with files_job(archive.store, target, options(server, "none")) as job:
        run_once(job)
    assert files_of(target) == {0: [{"a": 1, "must": "x"}], 1: [{"a": 0}]}


def test_schema_of_another_subject_does_not_fit(avro: Serialize, server: FakeRegistry) -> None:
    archive, target = MadeArchive(), FakeStorage()
    first = avro(V1, {"a": 0})
    other = server.register("others-value", {"schema": json.dumps(V2)})
    stored([first, b"\0" + other.to_bytes(4, "big") + b"\x02\x00"], into=archive)
    made = options(server, "backward", dead_letters="dead")
    with files_job(archive.store, target, made) as job:
        [done] = new_run(job).done
    assert files_of(target) == {0: [{"a": 0}]}
    [(key, data)] = data_files(target.contents(), "dead/").items()
    assert done.written.dead_letters == 1
    assert "has no version in the subject orders-value" in rows_of(key, data)[0]["reason"]


def test_unknown_schema_does_not_change_the_schema_of_the_rows(
    avro: Serialize, server: FakeRegistry
) -> None:
    archive, target = MadeArchive(), FakeStorage()
    unknown = b"\0\0\0\3\xe7\x02"
    stored([avro(V1, {"a": 0}), unknown, avro(V1, {"a": 2}), b"text"], into=archive)
    made = options(server, "none", dead_letters="dead")
    with files_job(archive.store, target, made) as job:
        [done] = new_run(job).done
    assert (files_of(target), done.written.dead_letters) == ({0: [{"a": 0}, {"a": 2}]}, 2)


def test_unavailable_registry_keeps_the_plan(orders: MadeArchive, server: FakeRegistry) -> None:
    target = FakeStorage()
    quick = RegistryConfig(url=server.url, client={"max.retries": "0"})
    made = options(server, "backward", null_values="skip")
    server.fault = lambda _path: (503, {})
    with files_job(orders.store, target, made, registry=quick) as job:
        with pytest.raises(StoreUnavailableError, match="answered 503"):
            run_once(job)
        assert manifest_in(target.contents()).pending is not None
        server.fault = lambda _path: None
        run_once(job)
    assert files_of(target) == NEWEST


def test_json_schema_changes_are_applied(
    client: SchemaRegistryClient, server: FakeRegistry
) -> None:
    archive = MadeArchive()
    kinds = {"a": {"type": "integer"}, "b": {"type": "string"}}
    values = []
    for names in ("a", "ab", "a"):
        schema = {
            "title": "Order",
            "type": "object",
            "properties": {name: kinds[name] for name in names},
        }
        serialize = JSONSerializer(json.dumps(schema), client)
        row = {name: 1 if name == "a" else "x" for name in names}
        values.append(serialize(row, CONTEXTS[MessageField.VALUE]))
    stored(values, into=archive)
    found = {}
    for compatibility in ("none", "backward", "forward"):
        target = FakeStorage()
        with files_job(archive.store, target, options(server, compatibility, "json")) as job:
            run_once(job)
        found[compatibility] = files_of(target)
    assert found == {
        "none": {0: [{"a": 1}], 1: [{"a": 1, "b": "x"}], 2: [{"a": 1}]},
        "backward": {0: [{"a": 1}], 1: [{"a": 1, "b": "x"}, {"a": 1, "b": None}]},
        "forward": {0: [{"a": 1}] * 3},
    }


def test_keys_are_decoded_like_values(
    avro: Serialize, client: SchemaRegistryClient, server: FakeRegistry
) -> None:
    """The schemas of keys change, too."""
    archive, target = MadeArchive(), FakeStorage()
    keys = [
        AvroSerializer(client, json.dumps(schema))(value, CONTEXTS[MessageField.KEY])
        for schema, value in ((V1, {"a": 7}), (V2, {"a": 8, "b": "k"}))
    ]
    value = avro(V1, {"a": 0})
    records = [
        MadeRecord(0, 5, key=keys[0], value=value),
        MadeRecord(1, 5, key=keys[1], value=value),
        MadeRecord(2, 5, key=None, value=value),
        MadeRecord(3, 5, key=b"text", value=value),
    ]
    archive.segment(0, [MadeBatch(tuple(records))])
    archive.mark(0, 4)
    made = options(server, "none", layout="record", dead_letters="dead")
    key = made.value.model_copy(update={"subject": "orders-key"})
    with files_job(archive.store, target, made.model_copy(update={"key": key})) as job:
        run_once(job)
    found = {at: [row["key"] for row in rows] for at, rows in files_of(target).items()}
    assert found == {0: [{"a": 7}], 1: [{"a": 8, "b": "k"}, None]}
    [(name, data)] = data_files(target.contents(), "dead/").items()
    [letter] = rows_of(name, data)
    assert (letter["offset"], letter["key"]) == (3, "dGV4dA==")
    assert letter["reason"].startswith("key: value is not Avro in Confluent's wire format")


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(tmp_path, capsys)


def test_command_follows_a_schema_change_and_keeps_secrets(
    cli: CommandLine,
    avro: Serialize,
    server: FakeRegistry,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The credentials appear in no file and no output."""
    store = open_plain(StorageEndpoint(f"file://{cli.store}"))
    archive = MadeArchive(store)
    stored([avro(V1, {"a": 0})], into=archive)

    def change() -> None:
        stored([avro(V2, {"a": 1, "b": "kept"})], first=1, into=archive)

    monkeypatch.setattr(session, "stopping", lambda **_: nullcontext(Between(change)))
    monkeypatch.setenv("REGISTRY_LOGIN", "me:hidden-word")
    server.headers.clear()
    code = cli.run(
        *("export", "files", "orders", "--into", f"file://{tmp_path}/lake", "--follow"),
        *("--value-format", "avro", "--layout", "value", "--format", "json"),
        *("--schema-registry", server.url, "--schema-compatibility", "backward"),
        *("--schema-registry-option", "basic.auth.user.info=env:REGISTRY_LOGIN"),
        *("--schema-registry-option", "schema.registry.max.retries=1"),
    )
    assert code == 0, cli.err
    lake = {path.name: path.read_bytes() for path in (tmp_path / "lake/topics").rglob("*.json")}
    manifest = lake.pop("manifest.json")
    rows = [json.loads(line) for data in lake.values() for line in data.splitlines()]
    assert sorted(rows, key=lambda row: row["a"]) == [{"a": 0}, {"a": 1, "b": "kept"}]
    sent = {one["Authorization"] for one in server.headers if "Authorization" in one}
    assert sent == {"Basic bWU6aGlkZGVuLXdvcmQ="}
    assert b"hidden-word" not in manifest
    assert "hidden-word" not in cli.out + cli.err


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("basic.auth.user.info=me:hidden",), "must be a reference to the secret"),
        (("bearer.auth.token=hidden",), "must be a reference to the secret"),
        (("ssl.keystore.location=/x",), "Unrecognized properties: ssl.keystore.location"),
    ],
)
def test_invalid_registry_settings_are_refused(
    cli: CommandLine, server: FakeRegistry, given: tuple[str, ...], reason: str
) -> None:
    options = [word for one in given for word in ("--schema-registry-option", one)]
    line = ("export", "files", "orders", "--into", "file:///tmp/lake", "--value-format", "avro")
    assert cli.run(*line, "--schema-registry", server.url, *options) == 2
    assert reason in cli.err
    assert "hidden" not in cli.err
    assert cli.run(*line, *options) == 2
    assert "needs --schema-registry" in cli.err


def test_registry_without_a_value_format_is_refused(cli: CommandLine, server: FakeRegistry) -> None:
    line = ("export", "files", "orders", "--into", "file:///tmp/lake")
    assert cli.run(*line, "--schema-registry", server.url) == 2
    assert "give --value-format or --key-format" in cli.err
