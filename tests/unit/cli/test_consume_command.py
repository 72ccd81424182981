import base64
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidetier.cli.main import run
from sidetier.segments.headers import Compression
from sidetier.segments.json_text import parse_json
from sidetier.segments.keys import ArchiveLayout
from sidetier.segments.names import FileKind
from sidetier.segments.notes import NEXT_OFFSET_KEY
from sidetier.segments.offsets import TopicPartition
from sidetier.storage.factory import open_plain
from sidetier.storage.port import RemoteStorage
from sidetier.storage.settings import StorageEndpoint
from tests.harness.broker_archive import store_broker_segments
from tests.harness.command_line import CommandLine
from tests.harness.made_archive import MadeArchive
from tests.harness.markdown import blocks, text_of
from tests.harness.record_batches import MadeBatch, MadeRecord
from tests.harness.schema_registry import serving

LAYOUT = ArchiveLayout("prod-a", 3)


@pytest.fixture
def store(cli: CommandLine) -> Iterator[RemoteStorage]:
    """The store of the command line."""
    opened = open_plain(StorageEndpoint(f"file://{cli.store}"))
    yield opened
    opened.close()


@pytest.fixture
def orders(store: RemoteStorage) -> MadeArchive:
    """An archive of orders-0 with the offsets 0 to 39 in four segments; timestamps equal
    offsets.
    """
    archive = MadeArchive(store, LAYOUT)
    archive.segments(0, 10, 20, 30, 40)
    return archive


def offsets(cli: CommandLine) -> list[int]:
    return [json.loads(line)["offset"] for line in cli.lines()]


def test_whole_topic_is_printed_as_json_lines(cli: CommandLine, orders: MadeArchive) -> None:
    other = MadeArchive(orders.store, LAYOUT, TopicPartition("orders", 3))
    other.segments(100, 105)
    assert cli.run("consume", "orders") == 0
    rows = [json.loads(line) for line in cli.lines()]
    found = [row["offset"] for row in rows if row["partition"] == 0]
    assert found == list(range(40))
    assert [row["offset"] for row in rows if row["partition"] == 3] == list(range(100, 105))
    assert next(row for row in rows if row["partition"] == 0) == {
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "timestamp": 0,
        "timestamp_type": "create",
        "key": None,
        "value": "value-0",
        "headers": [],
    }
    assert cli.err == ""
    assert cli.run("consume", "orders", "3") == 0
    assert offsets(cli) == list(range(100, 105))


@pytest.mark.parametrize(
    ("options", "first", "end"),
    [
        (["--from", "7"], 7, 40),
        (["--from", "7", "--to", "23"], 7, 23),
        (["--from", "-5"], 35, 40),
        (["--from", "-500", "--to", "-30"], 0, 10),
        (["--from", "@12", "--to", "@31"], 12, 31),
        (["--from", "1970-01-01T00:00:00.025Z", "--to", "end"], 25, 40),
        (["--from", "1970-01-01T01:00:00.025+01:00"], 25, 40),
        (["--from", "beginning", "--limit", "13"], 0, 13),
        (["--from", "end"], 40, 40),
        (["--from", "@4000"], 40, 40),
        (["--since", "@25"], 25, 40),
        (["--since", "2h"], 40, 40),
        (["--since", "1970-01-01T00:00:00.030"], 30, 40),
        (["--from", "30000d", "--to", "-2h", "--limit", "3"], 0, 3),
    ],
)
@pytest.mark.usefixtures("orders")
def test_part_of_a_topic_can_be_selected(
    cli: CommandLine, options: list[str], first: int, end: int
) -> None:
    assert cli.run("consume", "orders", "0", *options) == 0
    assert offsets(cli) == list(range(first, end))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--from", "yesterday"], "neither an offset (1234)"),
        (["--to", "99999999999999999999999"], "neither an offset"),
        (["--to", "9999999999999999999"], "beyond any offset"),
        (["--follow", "--to", "3"], "--follow has no end"),
        (["--limit", "0"], "--limit"),
        (["--since", "yesterday"], "'yesterday' is not a time: use a date or time (2026-11-21,"),
        (["--since", "7"], "'7' is not a time"),
        (["--since", "2h", "--from", "3"], "--since is --from with a time"),
        (["--value-format", "avro"], "--value-format avro: needs --schema-registry"),
        (["--value-format", "json", "--count"], "are for JSON lines"),
        (["--delimiter", r"\q"], "after a backslash"),
        (["--mode", "KAFKA_PREFERRED"], "give the cluster's address by --bootstrap"),
    ],
)
@pytest.mark.usefixtures("orders")
def test_invalid_options_are_refused(cli: CommandLine, options: list[str], said: str) -> None:
    assert cli.run("consume", "orders", *options) == 2
    assert said in cli.err
    assert cli.out == ""


def test_values_are_printed_as_text_base64_or_raw_bytes(
    cli: CommandLine, orders: MadeArchive
) -> None:
    made = MadeBatch(
        (
            MadeRecord(40, key=b"k", value=b"\xff\x00", headers=((b"h", b"\xfe"), (b"h", None))),
            MadeRecord(41, value=None),
            MadeRecord(42, value="Grüße".encode()),
        )
    )
    orders.segment(40, [made])
    orders.mark(40, 43)
    line = ("consume", "orders", "0", "--from", "41", "--output", "raw")
    assert cli.run(*line) == 0
    assert cli.out == "\nGrüße\n"
    assert cli.run(*line, "--delimiter", r"|\x2d\t") == 0
    assert cli.out == "|-\tGrüße|-\t"
    all_of_it = ("consume", "orders", "0", "--from", "40")
    assert cli.run(*all_of_it) == 0
    shown = [json.loads(row) for row in cli.lines()]
    assert shown[0]["value"] == {"base64": base64.b64encode(b"\xff\x00").decode()}
    assert shown[0]["headers"] == [
        {"key": "h", "value": {"base64": "/g=="}},
        {"key": "h", "value": None},
    ]
    assert [row["value"] for row in shown[1:]] == [None, "Grüße"]
    assert cli.run(*all_of_it, "--encoding", "base64") == 0
    assert json.loads(cli.lines()[2])["value"] == base64.b64encode("Grüße".encode()).decode()


def test_count_prints_the_number_of_records(cli: CommandLine, orders: MadeArchive) -> None:
    assert orders.tp.topic == "orders"
    told = cli.json("consume", "orders", "--from", "5", "--count")
    assert told == {
        "topic": "orders",
        "records": 35,
        "partitions": [
            {
                "partition": 0,
                "from_offset": 5,
                "next_offset": 40,
                "records": 35,
                "missing_offsets": 0,
            }
        ],
    }
    assert cli.run("consume", "orders", "--count") == 0
    head, row, footer = cli.lines()
    assert head.split() == ["PARTITION", "OFFSETS", "RECORDS"]
    assert (row.split(), footer) == (["0", "[0,", "40)", "40"], "40 records of orders")


def test_gap_ends_the_command_or_is_skipped_with_a_message(
    cli: CommandLine, orders: MadeArchive
) -> None:
    orders.lose(10)
    assert cli.run("consume", "orders", "0") == 1
    assert offsets(cli) == list(range(10))
    assert "offsets [10, 20) are missing" in cli.err
    assert "--from 20 continues after them, --on-gap skip skips every gap" in cli.err
    assert cli.run("consume", "orders", "0", "--on-gap", "skip") == 3
    assert offsets(cli) == [*range(10), *range(20, 40)]
    assert "skipped: " in cli.err
    assert "offsets [10, 20) are missing" in cli.err
    told = cli.json("consume", "orders", "--on-gap", "skip", "--count", code=3)
    assert told["partitions"][0]["missing_offsets"] == 10
    assert cli.run("consume", "orders", "0", "--to", "10") == 0
    assert cli.run("consume", "orders", "0", "--from", "20") == 0


def test_damaged_segment_is_named_and_can_be_skipped(cli: CommandLine, orders: MadeArchive) -> None:
    data = bytearray(orders.store.get_object(orders.key(10)).data)
    data[-3] ^= 1
    orders.lose(10, FileKind.LOG)
    orders.put(orders.key(10), bytes(data), {NEXT_OFFSET_KEY: "20"})
    assert cli.run("consume", "orders", "0") == 1
    assert offsets(cli) == list(range(15))
    assert orders.key(10) in cli.err
    assert cli.run("consume", "orders", "0", "--on-gap", "skip") == 3
    assert offsets(cli) == [*range(15), *range(20, 40)]


def test_batch_above_the_limit_is_never_skipped(cli: CommandLine, orders: MadeArchive) -> None:
    large = MadeBatch((MadeRecord(40, value=bytes(2 << 20)),), Compression.ZSTD)
    orders.segment(40, [large])
    orders.mark(40, 41)
    line = ("consume", "orders", "0", "--from", "35", "--on-gap", "skip", "--output", "raw")
    assert cli.run(*line, "--max-batch-bytes", "1MiB") == 1
    assert "offsets [40, 41) are more than 1048576 bytes, decompressed" in cli.err
    assert "--max-batch-bytes" in cli.err
    assert cli.run(*line) == 0
    assert cli.run(*line, "--max-batch-bytes", "4GiB") == 2
    assert "at most 2147483647 bytes" in cli.err


def test_undecided_offsets_are_left_out_and_reported(cli: CommandLine, orders: MadeArchive) -> None:
    opened = MadeBatch((MadeRecord(40),), is_transactional=True, producer_id=7, producer_epoch=0)
    plain = MadeBatch(tuple(MadeRecord(offset) for offset in range(41, 50)))
    orders.segment(40, [opened, plain])
    orders.mark(40, 50)
    assert cli.run("consume", "orders", "0", "--from", "35") == 0
    assert offsets(cli) == list(range(35, 40))
    assert "offsets [40, 50) are left out" in cli.err
    line = ("consume", "orders", "0", "--from", "35", "--isolation", "read_uncommitted")
    assert cli.run(*line) == 0
    assert offsets(cli) == list(range(35, 50))
    assert cli.err == ""


def test_missing_archive_is_a_usage_error(cli: CommandLine, orders: MadeArchive) -> None:
    assert orders.tp.topic == "orders"
    cli.configure({"storage": {"prefix_entropy_bits": 4}})
    assert cli.run("consume", "orders", "0") == 2
    assert "set it to 3" in cli.err
    cli.configure({"storage": {"url": f"file://{cli.root}/nowhere"}})
    assert cli.run("consume", "orders") == 2
    assert "there is no such directory" in cli.err


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A record of the fixtures in the form the command prints."""
    stamped = row["timestamp_type"] != "NoTimestampType"
    return {
        "offset": row["offset"],
        "timestamp": row["timestamp"] if stamped else None,
        "key": row["key"],
        "value": row["value"],
        "headers": [{"key": key, "value": value} for key, value in row["headers"]],
    }


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("name", ["tx-0", "headers-nulls-0", "compacted-0", "comp-zstd-0"])
def test_broker_segments_equal_the_consumer_output(
    cli: CommandLine, store: RemoteStorage, name: str, isolation: str
) -> None:
    segments = store_broker_segments(store, LAYOUT, name)
    directory, end = segments[0].directory, segments[-1].next_base
    text = (directory / f"expected.{isolation}.jsonl").read_text(encoding="utf-8")
    wanted = [_shown(json.loads(line)) for line in text.splitlines()]
    line = ("consume", name.removesuffix("-0"), "--isolation", isolation, "--encoding", "base64")
    assert cli.run(*line) == 0, cli.err
    told = [json.loads(row) for row in cli.lines()]
    found = [{key: row[key] for key in wanted[0]} for row in told]
    # With read_committed, the store does not know what the active segment decides.
    assert found == [row for row in wanted if row["offset"] < min(end, _undecided(cli.err, end))]
    assert len(found) > len(wanted) // 2


def _undecided(said: str, end: int) -> int:
    words = said.split()
    return int(words[words.index("offsets") + 1].strip("[,")) if "offsets" in words else end


def test_missing_pyarrow_error_names_the_extra_to_install(
    cli: CommandLine, orders: MadeArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert orders.tp.topic == "orders"
    for name in [name for name in sys.modules if name.startswith("sidetier.cli.consume.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert cli.run("consume", "orders") == 2
    assert "needs pyarrow, which is not installed: pip install 'sidetier[consumer]'" in cli.err


def test_program_of_the_python_page_reads_what_the_command_counts(
    cli: CommandLine, orders: MadeArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    [counted] = cli.json("consume", orders.tp.topic, "--count")["partitions"]
    monkeypatch.chdir(cli.root)
    [text] = [
        block.text
        for block in blocks(text_of(Path("docs/python-api.md")), "python")
        if "open_reading" in block.text
    ]
    variables: dict[str, Any] = {}
    exec(text.replace('"2h"', '"beginning"'), variables)  # noqa: S102 -- our own page
    [read] = variables["reading"].partitions.values()
    assert (read.records, read.position) == (counted["records"], counted["next_offset"])
    assert read.records > 0


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["consume", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "sidetier consume orders" in shown
    assert "Exit codes: 0 " in shown


@pytest.fixture
def keyed(store: RemoteStorage) -> MadeArchive:
    """An archive of orders-0 with six records in two segments."""
    archive = MadeArchive(store, LAYOUT)
    records = [
        MadeRecord(0, 0, key=b"a", value=b"red apple", headers=((b"kind", b"fruit"),)),
        MadeRecord(1, 1, key=b"b", value=b"red brick", headers=((b"kind", None),)),
        MadeRecord(2, 2, key=b"a", value=None, headers=((b"kind", b"fruit"), (b"kind", b"x"))),
        MadeRecord(3, 3, key=None, value=b"\x00\x01 red"),
        MadeRecord(4, 4, key=b"", value=b""),
        MadeRecord(5, 5, key=b"c", value=b"red car", headers=((b"to", b"x"), (b"kind", b"car"))),
    ]
    for base in (0, 3):
        archive.segment(base, [MadeBatch(tuple(records[base : base + 3]))])
    archive.mark(3, 6)
    return archive


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--key", "a"], [0, 2]),
        (["--key", "a", "--key", "c"], [0, 2, 5]),
        (["--key", ""], [4]),
        (["--header", "kind"], [0, 1, 2, 5]),
        (["--header", "kind=fruit"], [0, 2]),
        (["--header", "kind=x", "--header", "kind=fruit"], [2]),
        (["--header", "kind="], []),
        (["--value-contains", "red"], [0, 1, 3, 5]),
        (["--value-contains", "red", "--value-contains", "car"], [5]),
        (["--value-contains", r"\x01"], [3]),
        (["--value-contains", "red", "--key", "b"], [1]),
        (["--value-contains", "red", "--limit", "3"], [0, 1, 3]),
        (["--value-contains", "red", "--from", "1", "--to", "5"], [1, 3]),
    ],
)
@pytest.mark.usefixtures("keyed")
def test_filters_select_records(cli: CommandLine, options: list[str], found: list[int]) -> None:
    assert cli.run("consume", "orders", *options) == 0
    assert offsets(cli) == found
    assert cli.run("consume", "orders", *options, "--count", "-o", "json") == 0
    assert json.loads(cli.out)["records"] == len(found)
    assert cli.run("consume", "orders", *options, "-o", "raw") == 0
    assert cli.out.count("\n") == len(found)


def test_each_value_of_a_json_topic_gives_a_valid_line(
    cli: CommandLine, store: RemoteStorage
) -> None:
    """Also a value that UTF-8 cannot encode, and numbers that are not JSON (RFC 8259)."""
    values = [b'{"a": 1}', rb'"\ud800x"', b'{"a": 1e400}', b"NaN", b'"\xc3\xbc"']
    archive = MadeArchive(store, LAYOUT)
    archive.segment(0, [MadeBatch(tuple(MadeRecord(at, value=v) for at, v in enumerate(values)))])
    archive.mark(0, len(values))
    assert cli.run("consume", "orders", "--value-format", "json") == 0, cli.err
    shown = [parse_json(line)["value"] for line in cli.lines()]
    assert shown == [{"a": 1}, "\ud800x", '{"a": 1e400}', "NaN", "\u00fc"]


def test_values_are_decoded_with_the_schema_that_each_names(
    cli: CommandLine, store: RemoteStorage
) -> None:
    old: Any = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}
    money = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
    new: Any = {**old, "fields": [*old["fields"], {"name": "price", "type": money}]}
    archive = MadeArchive(store, LAYOUT)
    with serving() as registry:
        first, second = (
            registry.register("a", {"schema": json.dumps(kind)}) for kind in (old, new)
        )
        values = [
            struct.pack(">bI", 0, first) + b"\x0e",
            struct.pack(">bI", 0, second) + b"\x10\x04\x00\xc8",
            struct.pack(">bI", 0, 99) + b"\x0e",
            b"plain",
            None,
        ]
        records = [MadeRecord(at, at, key=b"7", value=value) for at, value in enumerate(values)]
        archive.segment(0, [MadeBatch(tuple(records))])
        archive.mark(0, len(values))
        options = ("--key-format", "json", "--value-format", "avro")
        code = cli.run("consume", "orders", *options, "--schema-registry", registry.url)
    assert code == 0, cli.err
    rows = [json.loads(line) for line in cli.lines()]
    assert [row["key"] for row in rows] == [7] * 5
    assert [row["value"] for row in rows[:2]] == [{"n": 7}, {"n": 8, "price": "2.00"}]
    assert rows[2]["value"] == (values[2] or b"").decode()
    assert [row["value"] for row in rows[3:]] == ["plain", None]
    assert "the schema 99, which the registry does not have" in cli.err
    assert "lacks the header with the id of its schema" in cli.err
