"""The image: state of topics, leaders and epochs after a sequence of records."""

from sidetier.leadership.kraft.image import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataImage,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    print_uuid,
)
from sidetier.segments.offsets import BrokerId, TopicPartition

ID, OTHER = b"A" * 16, b"B" * 16
US = BrokerId(1)
ORDERS = TopicPartition("orders", 0)


def image_of(*records: MetadataRecord) -> MetadataImage:
    image = MetadataImage()
    for record in records:
        image.apply(record)
    return image


CREATED = (TopicRecord("orders", ID), PartitionRecord(ID, 0, 1, 4), PartitionRecord(ID, 1, 2, 4))


def test_only_partitions_of_this_broker_are_led() -> None:
    assert image_of(*CREATED).leads(US) == {ORDERS: 4}


def test_each_record_with_a_leader_raises_the_epoch() -> None:
    image = image_of(*CREATED, PartitionChangeRecord(ID, 0, 2))
    assert image.leads(US) == {}
    image.apply(PartitionChangeRecord(ID, 0, 1))
    assert image.leads(US) == {ORDERS: 6}
    image.apply(PartitionChangeRecord(ID, 0, 1))
    assert image.leads(US) == {ORDERS: 7}


def test_change_of_the_isr_keeps_leader_and_epoch() -> None:
    assert image_of(*CREATED, PartitionChangeRecord(ID, 0, None)).leads(US) == {ORDERS: 4}


def test_missing_leader_is_not_this_broker() -> None:
    assert image_of(*CREATED, PartitionChangeRecord(ID, 0, -1)).leads(US) == {}


def test_removed_topic_loses_its_leads_and_its_id() -> None:
    image = image_of(*CREATED, RemoveTopicRecord(ID))
    assert (image.leads(US), image.topic_ids()) == ({}, {})


def test_recreated_topic_has_its_new_id() -> None:
    image = image_of(
        *CREATED,
        RemoveTopicRecord(ID),
        TopicRecord("orders", OTHER),
        PartitionRecord(OTHER, 0, 1, 0),
    )
    assert image.leads(US) == {ORDERS: 0}
    assert image.topic_ids() == {"orders": print_uuid(OTHER)}


def test_transaction_counts_once_it_ends() -> None:
    image = image_of(BeginTransactionRecord(), *CREATED)
    assert image.leads(US) == {}
    assert image.apply(EndTransactionRecord())
    assert image.leads(US) == {ORDERS: 4}


def test_aborted_transaction_has_no_effect() -> None:
    image = image_of(*CREATED, BeginTransactionRecord(), RemoveTopicRecord(ID))
    assert not image.apply(AbortTransactionRecord())
    assert image.leads(US) == {ORDERS: 4}
    image.apply(PartitionChangeRecord(ID, 1, 1))
    assert len(image.leads(US)) == 2


def test_ids_are_formatted_as_in_kafka() -> None:
    assert print_uuid(bytes(15) + b"\x01") == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert print_uuid(b"\xfb\xff" * 8) == "-__7__v_-__7__v_-__7_w"
