"""What the head of a `.log` proves about it."""

import pytest

from sidetier.archive.errors import DamagedArchiveError
from sidetier.archive.objects.log_check import is_full, mismatches, proven_end
from sidetier.archive.objects.notes import noted_checksum, noted_epoch, noted_number
from sidetier.segments.errors import ObjectNotFoundError, PreconditionFailedError
from sidetier.segments.notes import (
    CHECKSUM_KEY,
    LEADER_EPOCH_KEY,
    NEXT_OFFSET_KEY,
    PLACE_KEY,
    RECORDS_KEY,
    SIZE_KEY,
)
from sidetier.segments.offsets import UNKNOWN_EPOCH, Offset
from sidetier.storage.bodies import BytesBody
from sidetier.storage.fake import FakeStorage
from sidetier.storage.port import ObjectHead, PutOptions

PLACE = f"orders-0/{100:020d}"
KEY = f"101/prod-a/{PLACE}.log"
QUARANTINED = f"_sidetier/prod-a/quarantine/orders-0/3-20/{100:020d}.log"


def stored(notes: dict[str, str], key: str = KEY) -> tuple[FakeStorage, str]:
    store = FakeStorage()
    return store, store.put_object(key, BytesBody(bytes(50)), PutOptions(metadata=notes))


@pytest.mark.parametrize("key", [KEY, QUARANTINED])
@pytest.mark.parametrize(
    ("notes", "full", "problems"),
    [
        ({SIZE_KEY: "50", PLACE_KEY: PLACE}, True, 0),
        ({SIZE_KEY: "50"}, True, 0),
        ({}, False, 0),
        ({SIZE_KEY: "many"}, False, 0),
        ({SIZE_KEY: "51", PLACE_KEY: PLACE}, False, 1),
        ({SIZE_KEY: "49"}, False, 1),
        ({SIZE_KEY: "50", PLACE_KEY: PLACE.replace("0/", "1/")}, False, 1),
        ({SIZE_KEY: "51", PLACE_KEY: "orders-0/7"}, False, 2),
    ],
)
def test_size_and_place_are_those_in_the_metadata(
    key: str,
    notes: dict[str, str],
    full: bool,  # noqa: FBT001
    problems: int,
) -> None:
    store, _ = stored(notes, key)
    head = store.head_object(key)
    assert is_full(head) is full
    assert len(list(mismatches(head))) == problems


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        (str(2**63 - 1), 2**63 - 1),
        (str(2**63), None),
        ("9" * 5000, None),
        ("-1", None),
        ("1_0", None),
        ("", None),
    ],
)
def test_numbers_in_metadata_are_those_of_offsets(text: str, number: int | None) -> None:
    """Python itself refuses to convert thousands of digits, by an error that no reader expects."""
    assert noted_number(ObjectHead(KEY, 50, "e", 0, {SIZE_KEY: text}), SIZE_KEY) == number


@pytest.mark.parametrize(
    ("text", "epoch"),
    [
        ("7", 7),
        ("-1", UNKNOWN_EPOCH),
        ("+7", UNKNOWN_EPOCH),
        (" 7", UNKNOWN_EPOCH),
        ("\N{ARABIC-INDIC DIGIT SEVEN}", UNKNOWN_EPOCH),
    ],
)
def test_leader_epochs_in_metadata_are_digits(text: str, epoch: int) -> None:
    head = ObjectHead(KEY, 50, "e", 0, {LEADER_EPOCH_KEY: text})
    assert noted_epoch(head, LEADER_EPOCH_KEY) == epoch
    assert noted_epoch(ObjectHead(KEY, 50, "e", 0, {}), LEADER_EPOCH_KEY) == UNKNOWN_EPOCH


@pytest.mark.parametrize("text", ["", "0x0", "1_0", f"{5:x}", f"{5:016X}\n", "-" + "0" * 15])
def test_a_checksum_in_metadata_is_16_digits(text: str) -> None:
    assert noted_checksum(ObjectHead(KEY, 50, "e", 0, {CHECKSUM_KEY: text})) is None
    assert noted_checksum(ObjectHead(KEY, 50, "e", 0, {CHECKSUM_KEY: f"{5:016x}"})) == 5


def test_an_end_that_is_not_above_the_last_batch_proves_nothing() -> None:
    store, etag = stored({NEXT_OFFSET_KEY: "120", SIZE_KEY: "50"})
    assert proven_end(store, KEY, etag, Offset(119)) == 120
    assert proven_end(store, KEY, etag, Offset(120)) is None
    store, etag = stored({})
    assert proven_end(store, KEY, etag, Offset(119)) is None


@pytest.mark.parametrize("size", [{SIZE_KEY: "51"}, {SIZE_KEY: "many", RECORDS_KEY: "20"}])
def test_lost_batches_are_named(size: dict[str, str]) -> None:
    store, etag = stored({NEXT_OFFSET_KEY: "120"} | size)
    with pytest.raises(DamagedArchiveError, match="its last batch ends at offset 110") as caught:
        proven_end(store, KEY, etag, Offset(110))
    assert (caught.value.key, caught.value.position) == (KEY, 50)
    assert caught.value.offsets == (110, 120)


def test_another_version_is_not_judged() -> None:
    store, etag = stored({NEXT_OFFSET_KEY: "120", SIZE_KEY: "51"})
    with pytest.raises(PreconditionFailedError):
        proven_end(store, KEY, etag + "x", Offset(110))
    store.delete_object(KEY)
    with pytest.raises(ObjectNotFoundError):
        proven_end(store, KEY, etag, Offset(110))
