"""Confluent's own serializers, unmodified, with our endpoint as their registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from confluent_kafka.schema_registry import (
    Schema,
    SchemaRegistryClient,
    header_schema_id_serializer,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from cdc.avro import folder
from cdc.avro.endpoint import application
from cdc.avro.registry import Registry
from cdc.observe.guard import Guard
from cdc.observe.http import HttpServer

TOPIC = "outbox.event.Order"
V1 = {
    "type": "record",
    "name": "OrderPlaced",
    "namespace": "shop",
    "fields": [{"name": "orderId", "type": "string"}, {"name": "totalCents", "type": "long"}],
}
V2 = {**V1, "fields": [*V1["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
PAID = {"type": "record", "name": "OrderPaid", "namespace": "shop", "fields": [{"name": "orderId", "type": "string"}]}
ORDER = {"orderId": "o-1", "totalCents": 1299}
NOTED = {**ORDER, "note": "ring twice"}


def write_folder(path: Path) -> Registry:
    """A folder with two versions of one event and one of another, both on one topic."""
    for name, schema in (("OrderPlaced/1", V1), ("OrderPlaced/2", V2), ("OrderPaid/1", PAID)):
        file = path / f"{name}.avsc"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(schema))
    (path / "registry.toml").write_text(f'[subjects.OrderPlaced]\ntopic = "{TOPIC}"\n[subjects.OrderPaid]\ntopic = "other"\n')
    contents = folder.scan(path)
    folder.write_lock(path, contents.lock.added((f.subject, f.number, f.fingerprint) for f in contents.unlocked))
    return folder.load(path)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return write_folder(tmp_path / "schemas")


@pytest.fixture(params=["", "/registry"])
def url(request: pytest.FixtureRequest, registry: Registry) -> Iterator[str]:
    server = HttpServer("127.0.0.1", 0, lambda: application(lambda: registry, "/registry"))
    server.start()
    yield f"http://127.0.0.1:{server.port}{request.param}"
    server.stop()


@pytest.fixture
def client(url: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": url}) as made:
        yield made


VALUE = SerializationContext(TOPIC, MessageField.VALUE)


def test_the_deserializer_reads_both_versions_on_one_topic(client: SchemaRegistryClient, registry: Registry) -> None:
    read = AvroDeserializer(client)
    first = registry.encoder("OrderPlaced", 1).encode(json.dumps(ORDER))
    second = registry.encoder("OrderPlaced", 2).encode(json.dumps(NOTED))
    assert read(first, VALUE) == ORDER
    assert read(second, VALUE) == NOTED
    in_new_shape = AvroDeserializer(client, json.dumps(V2))
    assert in_new_shape(first, VALUE) == {**ORDER, "note": None}
    in_old_shape = AvroDeserializer(client, json.dumps(V1))
    assert in_old_shape(second, VALUE) == ORDER
    latest = AvroDeserializer(client, conf={"use.latest.version": True})
    assert latest(first, VALUE) == {**ORDER, "note": None}


@pytest.mark.parametrize(
    ("schema", "conf"),
    [
        pytest.param(V1, {}, id="default settings"),
        pytest.param(V2, {}, id="default settings, second version"),
        pytest.param(V1, {"auto.register.schemas": False}, id="look up"),
        pytest.param(None, {"auto.register.schemas": False, "use.latest.version": True}, id="latest"),
        pytest.param(V2, {"subject.name.strategy": record_subject_name_strategy}, id="record name"),
        pytest.param(
            V2, {"subject.name.strategy": record_subject_name_strategy, "auto.register.schemas": False}, id="record name, look up"
        ),
        pytest.param(V2, {"subject.name.strategy": topic_record_subject_name_strategy}, id="topic and record name"),
        pytest.param(V2, {"subject.name.strategy": topic_subject_name_strategy}, id="topic name"),
    ],
)
def test_the_serializer_writes_what_our_encoder_writes(
    client: SchemaRegistryClient, registry: Registry, schema: object, conf: dict[str, object]
) -> None:
    write = AvroSerializer(client, None if schema is None else json.dumps(schema), conf=conf)
    number = 1 if schema is V1 else 2
    value = ORDER if schema is V1 else NOTED
    assert write(value, VALUE) == registry.encoder("OrderPlaced", number).encode(json.dumps(value))
    assert AvroDeserializer(client)(write(value, VALUE), VALUE) == value


def test_a_schema_is_found_by_its_guid_in_a_header(url: str, client: SchemaRegistryClient, registry: Registry) -> None:
    headers: list[tuple[str, str | bytes | None]] = []
    context = SerializationContext(TOPIC, MessageField.VALUE, headers)
    body = AvroSerializer(client, json.dumps(V2), conf={"schema.id.serializer": header_schema_id_serializer})(NOTED, context)
    assert body == registry.encoder("OrderPlaced", 2).encode(json.dumps(NOTED))[5:]
    assert isinstance(headers[0][1], bytes)
    assert headers[0][1][1:] == registry.version("OrderPlaced", 2).guid.bytes
    with SchemaRegistryClient({"url": url}) as fresh:
        assert AvroDeserializer(fresh)(body, SerializationContext(TOPIC, MessageField.VALUE, headers)) == NOTED


def test_what_the_folder_lacks_is_refused_with_the_fields_code(client: SchemaRegistryClient) -> None:
    added = Schema(json.dumps({**V2, "fields": [*V2["fields"], {"name": "x", "type": "int", "default": 0}]}), "AVRO")
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("OrderPlaced", added)
    assert (refused.value.http_status_code, refused.value.error_code) == (422, 42205)
    broken = Schema(json.dumps({**V2, "fields": [{"name": "x", "type": "int"}]}), "AVRO")
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("OrderPlaced", broken)
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 40901)
    assert client.test_compatibility("OrderPlaced", added)
    assert not client.test_compatibility("OrderPlaced", broken)
    with pytest.raises(SchemaRegistryError) as refused:
        client.delete_subject("OrderPlaced")
    assert refused.value.error_code == 42205


def test_the_client_reads_everything_else(client: SchemaRegistryClient, registry: Registry) -> None:
    assert client.get_subjects() == ["OrderPaid", "OrderPlaced"]
    assert client.get_versions("OrderPlaced") == [1, 2]
    assert client.get_latest_version("OrderPlaced").schema_id == registry.latest("OrderPlaced").id
    assert client.get_version("OrderPlaced", 1).guid == str(registry.version("OrderPlaced", 1).guid)
    assert client.get_compatibility() == "BACKWARD_TRANSITIVE"
    assert client.get_config("OrderPlaced").compatibility_level == "BACKWARD_TRANSITIVE"
    assert client.get_mode("OrderPlaced") == client.get_global_mode() == "READONLY"
    assert client.get_contexts() == ["."]
    assert client.get_schema_types() == ["AVRO"]
    assert client.get_schema_versions(registry.latest("OrderPlaced").id)[0].version == 2


def test_records_go_through_kafka(kafka: str, unique: str, client: SchemaRegistryClient, registry: Registry) -> None:
    topic = f"{unique}.orders"
    context = SerializationContext(topic, MessageField.VALUE)
    values = [registry.encoder("OrderPlaced", 1).encode(json.dumps(ORDER)), AvroSerializer(client, json.dumps(V2))(NOTED, context)]
    admin = AdminClient({"bootstrap.servers": kafka})  # ends what is under way when it is forgotten
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka})
    for value in values:
        producer.produce(topic, value, key="o-1")
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": unique})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    read = AvroDeserializer(client)
    got: list[object] = []
    try:
        while len(got) < 2:
            message = consumer.poll(30)
            assert message is not None, "no record came in 30 s"
            assert message.error() is None
            got.append(read(message.value(), context))
    finally:
        consumer.close()
    assert got == [ORDER, NOTED]


def test_a_client_brings_the_token_as_its_password(registry: Registry) -> None:
    token = "0123456789abcdef"
    server = HttpServer("127.0.0.1", 0, lambda: Guard(application(lambda: registry, "/registry"), token, ()))
    server.start()
    try:
        url = f"http://127.0.0.1:{server.port}"
        with SchemaRegistryClient({"url": url, "basic.auth.user.info": f"anybody:{token}"}) as client:
            assert client.get_subjects()
        with SchemaRegistryClient({"url": url}) as client, pytest.raises(SchemaRegistryError, match="401"):
            client.get_subjects()
    finally:
        server.stop()
