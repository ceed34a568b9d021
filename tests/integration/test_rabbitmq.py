"""The pipeline publishes to a real RabbitMQ: what arrives, what becomes of faults, who has the lease."""

from __future__ import annotations

import json

import pytest

from tests.rabbit import RabbitPipeline
from tests.waiting import wait_for

pytestmark = [pytest.mark.servers, pytest.mark.packages]


def test_each_row_arrives_in_order_in_every_queue_of_a_fanout_with_the_properties_of_amqp(rabbit: RabbitPipeline) -> None:
    rabbit.set(rabbitmq__exchange_type="fanout", topics__value="envelope")
    rabbit.init()
    others = [f"{rabbit.name}.{service}" for service in ("inventory", "notification")]
    for queue in others:
        rabbit.bind("", queue)
    rabbit.started()
    rabbit.insert(1, 300)
    wait_for(lambda: len(rabbit.events()) == 300, what="all rows")
    for queue in (rabbit.queue, *others):
        values = [json.loads(event.value or b"") for event in rabbit.deliveries(queue)]
        assert [value["data"]["n"] for value in values] == list(range(1, 301)), "nothing failed, so nothing came twice"
    rabbit.wait_confirmed()
    [event, *_] = rabbit.events()
    headers = event.headers
    assert event.topic == rabbit.topic
    assert event.key == b"k"
    assert headers["amqp.message_id"] == headers["ce_id"]
    assert headers["amqp.type"] == headers["ce_type"] == b"Thing"
    assert headers["amqp.delivery_mode"] == b"2"
    assert headers["content-type"] == b"application/cloudevents+json"
    rabbit.stop()
    stored = rabbit.stored()
    assert stored is not None
    assert rabbit.slot().confirmed <= stored.end_lsn


def test_what_no_queue_takes_and_what_is_too_large_become_dead_letters(rabbit: RabbitPipeline) -> None:
    rabbit.set(topics__route="{aggregatetype}", rabbitmq__exchange_type="direct")
    rabbit.init()
    with rabbit.channel() as channel:
        channel.queue_unbind(rabbit.queue, rabbit.exchange, "#")
    rabbit.bind("thing")
    rabbit.topic = "thing"
    rabbit.started()
    rows = [("thing", 1, "", 0), ("nobody", 2, "", 0), ("thing", 3, "x" * 1_100_000, 0), ("thing", 4, "", 150_000), ("thing", 5, "", 0)]
    with rabbit.connection.transaction():
        for aggregate, n, text, size in rows:
            rabbit.execute(
                "INSERT INTO outbox (aggregatetype, aggregateid, type, payload, headers) VALUES (%s, 'k', 'Thing',"
                " jsonb_build_object('n', %s::int, 'text', %s::text), jsonb_build_object('long', repeat('x', %s::int)))",
                (aggregate, n, text, size),
            )
    rabbit.wait_numbers([1, 5])
    wait_for(lambda: len(rabbit.events(rabbit.dead_letter_topic)) == 3, what="three dead letters")
    letters = sorted((event.headers for event in rabbit.events(rabbit.dead_letter_topic)), key=lambda letter: letter["cdc.sequence"])
    assert [letter["cdc.reason"] for letter in letters] == [b"route", b"size", b"refused"]
    assert b"no queue is bound" in letters[0]["__connect.errors.exception.message"]
    assert "cdc.row" not in letters[2], "it would not have fit either"
    rabbit.wait_confirmed()


@pytest.mark.soak
def test_a_broker_without_memory_is_waited_for_and_health_tells(rabbit: RabbitPipeline) -> None:
    rabbit.init()
    rabbit.started()
    with rabbit.broker.alarm():
        rabbit.insert(1, 2_000)
        wait_for(lambda: "RabbitMQ" in rabbit.get("/health/ready")[1], 30, "health says what it waits for")
        assert rabbit.get("/health/ready") == (503, "streaming: RabbitMQ takes no messages for now: low on memory\n")
        assert rabbit.get("/health/live")[0] == 200
        assert rabbit.slot().active_pid is not None
    rabbit.wait_numbers(range(1, 2_001))
    wait_for(rabbit.ready, 30, "it is well again")
    assert len(rabbit.deliveries(rabbit.queue)) == 2_000, "waiting is no fault: nothing was sent again"


def test_a_second_instance_stands_by_and_the_doctor_is_content(rabbit: RabbitPipeline) -> None:
    rabbit.set(rabbitmq__confirm_timeout="20s")
    assert rabbit.here("check").code == 8
    rabbit.init()
    checked = rabbit.here("check", "--json")
    assert checked.code == 0, checked.out
    assert "no row asks for a partition" in checked.out
    rabbit.execute("ALTER TABLE outbox ADD COLUMN partition int")
    assert "column 'partition' of" in rabbit.here("check").out
    rabbit.init()  # again, and nothing changes
    first = rabbit.started()
    rabbit.insert(1, 10)
    rabbit.wait_numbers(range(1, 11))
    status = json.loads(rabbit.here("status", "--json").out.splitlines()[-1])
    assert status["running"]
    port = rabbit.another_port()
    second = rabbit.start(port=port)
    wait_for(lambda: rabbit.get("/health/ready", port)[1].startswith("standby"), 30, "the second one stands by")
    rabbit.kill(first)
    rabbit.insert(11, 20)
    rabbit.wait_ready(port)
    rabbit.wait_numbers(range(1, 21))
    assert rabbit.terminate(second) == 0
    for command in ("verify", "tail", "recover"):
        refused = rabbit.here(command)
        assert refused.code == 2
        assert "rabbitmq.audit" in refused.line


def test_what_a_stream_keeps_is_judged_shown_and_recovered(rabbit: RabbitPipeline) -> None:
    rabbit.set(rabbitmq__audit=f"{rabbit.name}.audit")
    rabbit.init()
    process = rabbit.started()
    rabbit.insert(1, 50)
    rabbit.insert(51, key="no-number", text="x" * 1_100_000)  # more than the broker takes
    rabbit.wait_numbers(range(1, 51))
    wait_for(lambda: len(rabbit.letters()) == 1, what="a dead letter")
    held = rabbit.here("verify", "--timeout", "0")
    assert held.code == 5
    assert "until the pipeline is stopped" in held.line
    rabbit.kill(process)
    for _ in range(2):  # reading takes nothing away
        verified = rabbit.here("verify", "--json")
        assert verified.code == 0, verified
        counts = json.loads(verified.out)
        assert [counts[name] for name in ("rows", "events", "dead_letters", "pending")] == [51, 50, 1, 0]
    [letter] = json.loads(rabbit.here("dead-letters", "list", "--json").out)["dead_letters"]
    assert letter["reason"] == "size"
    assert rabbit.here("dead-letters", "show", letter["id"]).code == 0
    shown = [json.loads(line) for line in rabbit.here("tail", "--from-beginning", "--json").out.splitlines()]
    assert [each["value"]["n"] for each in shown] == list(range(1, 51))
    assert {each["topic"] for each in shown} == {rabbit.topic}
    rabbit.execute(f"SELECT pg_drop_replication_slot('cdc_{rabbit.name}')")
    rabbit.insert(52, 60)
    assert rabbit.command("run").code == 4
    assert rabbit.here("recover", "--yes").code == 0
    rabbit.started()
    rabbit.wait_numbers([*range(1, 51), *range(52, 61)])


def test_rows_that_nobody_took_are_redriven_once_beside_the_pipeline(rabbit: RabbitPipeline) -> None:
    rabbit.init()
    with rabbit.channel() as channel:
        channel.queue_unbind(rabbit.queue, rabbit.exchange, "#")
    rabbit.started()
    rabbit.insert(1, 3)
    wait_for(lambda: len(rabbit.letters()) == 3, what="all are parked")
    nowhere = rabbit.here("dead-letters", "redrive", "--reason", "route")
    assert nowhere.code == 5
    assert "no letter was closed" in nowhere.line
    rabbit.bind()
    redriven = rabbit.here("dead-letters", "redrive", "--reason", "route", "--json")
    assert redriven.code == 0, redriven.err
    assert json.loads(redriven.out)["redriven"] == 3
    assert "rabbitmq.audit" in redriven.err, "nobody can tell whether newer events have passed"
    came = rabbit.deliveries(rabbit.queue)
    assert [event.n for event in came] == [1, 2, 3]
    assert all(event.headers["ce_replay"] == b"redrive:" + event.headers["ce_id"] for event in came)
    listed = json.loads(rabbit.here("dead-letters", "list", "--all", "--json").out)
    assert (listed["open"], len(listed["dead_letters"])) == (0, 3)
    again = rabbit.here("dead-letters", "redrive", listed["dead_letters"][0]["id"])
    assert again.code == 8
    assert "redriven before" in again.line


def test_what_is_wrong_with_the_broker_is_one_line(rabbit: RabbitPipeline) -> None:
    rabbit.here("init", "--create-table")
    url = rabbit.broker.url
    rabbit.set(rabbitmq__url=url.replace("guest:guest", "guest:hidden"))
    assert (answer := rabbit.here("init")).code == 5
    assert "user or password" in answer.line
    assert "hidden" not in answer.err
    rabbit.set(rabbitmq__url=url.replace("%2F", "nowhere"))
    assert (answer := rabbit.here("init")).code == 5
    assert "virtual host" in answer.line
    rabbit.set(rabbitmq__url="amqp://guest:hidden/x@host")
    assert (answer := rabbit.here("init")).code == 2
    assert "hidden" not in answer.err
    rabbit.set(rabbitmq__url=url)
    with rabbit.channel() as channel:
        channel.queue_delete(rabbit.position_topic)
    assert (answer := rabbit.command("run")).code == 5
    assert rabbit.position_topic in answer.line
    with rabbit.channel() as channel:
        channel.queue_declare(rabbit.position_topic, durable=True)
    answer = rabbit.here("init")
    assert answer.code == 5
    assert "other arguments" in answer.line
