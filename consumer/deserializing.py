"""Deserializers, configured as for `confluent_kafka.DeserializingConsumer`."""

from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Message
from confluent_kafka.error import ConsumeError, KeyDeserializationError, ValueDeserializationError
from confluent_kafka.serialization import MessageField, SerializationContext

Deserializer = Callable[[bytes | None, SerializationContext], Any]
KEY = "key.deserializer"
VALUE = "value.deserializer"
_BUILDER = ".builder"


class Deserializing:
    """Replaces keys and values of messages with deserialized objects, the key first.

    Args:
        key: None to leave keys as bytes.
        value: None to leave values as bytes.
        owned: deserializers that a builder made, which are closed with the consumer.
    """

    def __init__(
        self, key: Deserializer | None, value: Deserializer | None, owned: tuple[Any, ...] = ()
    ) -> None:
        self._key, self._value, self._owned = key, value, owned

    def cluster_id(self, resolve: Callable[[], str]) -> None:
        """Pass the function that returns the cluster's id to deserializers that accept one."""
        for deserializer in (self._key, self._value):
            setter = getattr(deserializer, "set_cluster_id_resolver", None)
            if setter is not None:
                setter(resolve)

    def apply(self, message: Message) -> Message:
        """Deserialize the message in place and return it.

        Raises:
            ConsumeError: the message is an error.
            KeyDeserializationError: the key cannot be deserialized.
            ValueDeserializationError: the value cannot be deserialized.
        """
        error = message.error()
        if error is not None:
            raise ConsumeError(error, kafka_message=message)
        context = SerializationContext(
            str(message.topic()),
            MessageField.KEY,
            message.headers(),
        )
        key: Any = message.key()
        value: Any = message.value()
        if self._key is not None:
            try:
                key = self._key(key, context)
            except Exception as failed:
                raise KeyDeserializationError(exception=failed, kafka_message=message) from failed
        if self._value is not None:
            context.field = MessageField.VALUE
            try:
                value = self._value(value, context)
            except Exception as failed:
                raise ValueDeserializationError(exception=failed, kafka_message=message) from failed
        message.set_key(key)
        message.set_value(value)
        return message

    def close(self) -> None:
        """Close the deserializers that were built here. May be called twice."""
        owned, self._owned = self._owned, ()
        for deserializer in owned:
            deserializer.close()


def deserializing(
    given: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[Deserializing | None, Mapping[str, Any]]:
    """Create the deserializers from `key.deserializer` and `value.deserializer`, or their
    `.builder`s.

    Returns:
        The deserializers, None where neither key is set; and the configuration without the keys
        that builders used.

    Raises:
        ValueError: a deserializer and its builder are both given.
    """
    if not any(value is not None for value in given.values()):
        return None, config
    owned: list[Any] = []
    key, config = _one(given, KEY, config, owned)
    value, config = _one(given, VALUE, config, owned)
    return Deserializing(key, value, tuple(owned)), config


def _one(
    given: Mapping[str, Any], name: str, config: Mapping[str, Any], owned: list[Any]
) -> tuple[Deserializer | None, Mapping[str, Any]]:
    ready, builder = given.get(name), given.get(name + _BUILDER)
    if ready is not None and builder is not None:
        raise ValueError(f"{name} and {name}{_BUILDER} are both given; use one of them")
    if builder is None:
        return ready, config
    built, left = builder.build(dict(config), name == KEY)
    owned.append(built)
    return built, left
