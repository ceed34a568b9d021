"""Consumers that apply each event once: the other side of the topic.

    import psycopg
    from cdc.consumer import Consumer, Event

    shop = Consumer(
        "inventory",                                     # the group, and the name in the inbox
        topics=["outbox.event.order"],
        kafka={"bootstrap.servers": "127.0.0.1:9092"},
        postgres="postgresql://inventory@127.0.0.1/inventory",
        schemas="schemas",                               # your copy of the schema folder
    )

    @shop.on("OrderPlaced")
    def reserve(event: Event, connection: psycopg.Connection) -> None:
        for line in event.value["lines"]:
            connection.execute("UPDATE stock SET pieces = pieces - %s WHERE sku = %s", (line["quantity"], line["sku"]))

    if __name__ == "__main__":
        shop.main()                                      # create_tables() and run(), until SIGTERM

`main` is for programs: what you have to mend is one line and an exit code, as `cdc` has them. `create_tables` and `run` raise it;
`ddl` is for a migration of yours. Lines go to the logger `cdc.consumer`, or to stderr when the program has set up no logging.

A handler is given an event and a psycopg connection whose transaction is open and already holds the event's marker (the *inbox*:
table `processed_events`). It writes; it does not commit. Effect and marker are committed together or not at all, so an event that
comes again, whatever the reason, is skipped. `async def` gets an asynchronous connection. A function of the event alone is fine, too.

WHAT A HANDLER MAY DO
    return                  the transaction is committed, then the offset
    raise anything          everything is rolled back; the record is tried again, and parked after the last attempt
    raise Unprocessable     parked at once
    raise TryAgain(30)      tried again in 30 s
    append to an outbox     by `cdc.outbox.append(connection, new_event)`: consume, effect and emit are one commit
    call something outside  with `event.idempotency_key`, which is the same in every attempt

WHERE PARKED EVENTS ARE: in the topic cdc.NAME.dead-letter, each with its reason. `cdc dead-letters list --consumer NAME` shows them; when
what was wrong is mended, `cdc dead-letters redrive ID --consumer NAME` gives them to this consumer again.

WHAT HANDLERS NEED BESIDES: `http = resource(lambda: httpx.Client(timeout=5))`
    whatever a context manager gives, synchronous or not: opened when `run` begins, closed when it ends; `http()` is the open client

DECLARING: `on(type, ..)`
    name=            the handler's name in the inbox, by default the function's; a new name is a new listener, which starts at the
                     group's offset
    version=         the schema version in whose shape the value comes, by default the newest in your folder
    model=           makes the value, such as a pydantic class's model_validate; on(SomeModel) does both, and `Event[SomeModel]` tells
                     type checkers
    retry=           Retry.listed(10, 30, 90, 270), .fixed(5, attempts=3), .exponential(0.5, cap_s=60, attempts=8), .never();
                     Retry().but({HttpBusy: Retry.fixed(60, attempts=20)}) by class of the error
    breaker=         the dependency that it needs, declared by `breaker(name, errors=(..), failures=5, open_s=300, probes=1)`: each process
                     has its own, or with shared=True all processes of the consumer have one, by a row in the database
    unique=          a business key, such as "welcome:{id}": work that must not be done twice whatever the event's id,
    unique_for=      for so many seconds; for ever without it
    compute=         a function of the value that is called before the transaction, in another process with processes=N; its
                     result is `event.prepared`
    pipeline=        True sends statements without waiting for their results, several times as fast over a network. A handler must
                     not look at `rowcount` or catch errors of the database then
    many=            True gives the handler a list of events, those of a `batch` that come in a row: a few statements for all of them
                     cost a fraction. When it raises, each event is tried in a list of its own. It enters `event.context()` for what it
                     appends to an outbox
    "*" as type      takes every event

SETTINGS: `Consumer(name, ..)`
    topics=          names, or {name: priority} with critical, high, default, low. Under full load of all they share the workers' time
                     8 : 4 : 2 : 1, or as shares={"low": 3, ..} says; worker_limits={"low": 1} is how many workers one may hold at once
    kafka=           librdkafka's properties; offsets, isolation and the group are ours
    postgres=        a connection string; schemas= your copy of the schema folder, without which values stay bytes (JSON is read by its
                     content-type)
    redis=           in place of it, to read from Redis Streams: {"url": ..}, and as in the pipeline's settings sentinel and streams;
                     session_s is how long a member may be silent before others take its streams (15), start="end" lets a new group
                     leave out what is there
    rabbitmq=        the same for RabbitMQ: {"url": .., "exchange": ..}; a topic is a routing key or a pattern of one, and a queue of the
                     group, which gets what is published once it is bound: call `create_topics()` before the first event;
                     single_active=False lets all members share a queue, which gives up its order
    instance=        a name that stays over restarts (a pod's ordinal): the partitions are kept while it restarts. Without it they
                     wait for Kafka's session timeout (45 s), or Redis' session, after a kill
    inbox=           "events"; "high-water" keeps one row for each partition in place of one for each event; "off"
    retention=       how long markers are kept (30 days); warned of when a topic holds events longer, together with
                     replay=, how far back beyond that you promise to take events that come again
    batch=           records in one database transaction, 1 by default; tried one by one when that fails
    workers=         threads (4), of which one works for a partition at a time. processes= is how many processes handlers' compute has
    in_flight=       records in memory (2,000): partitions that have more are paused. rate= is records a second, without a limit by default
    retry=           of all handlers that have none of their own: Retry(), which waits 10, 30, 90 and 270 s and parks after 5 attempts
    retry_topics=    True: failed records wait in topics of their own and let later ones pass; False (default): they keep the order
    after_parked=    "flag": later events of a parked event's key go on, and it is told `newer_applied` when it comes back;
                     "block": they are parked behind it
    unparkable=      "stop" (default): a record that cannot be parked stops its partition, visibly; "skip": it is left out and counted
    dead_letter_topic=   in place of cdc.NAME.dead-letter
    create=          Create(partitions, replication_factor, min_insync_replicas) makes the consumer's own topics in Kafka
    around=          a context manager around each call of a handler, such as a span: cdc.observe.consumer_spans.spans(). Of a list it
                     is given the first event
    tracebacks=      True logs what handlers raise with words and traceback, for development: they may show values of events
    observer=        who is told; cdc.observe.consumers.ConsumerMetrics shows it to Prometheus

WITHOUT A DATABASE (`postgres=None`) there is no inbox: after a crash a handler may be called again for an event. Its idempotency
key is what makes that harmless. Attempts are not kept over a restart, and nobody is told `newer_applied`.

TESTING: cdc.testing.bus.Bus runs a consumer in memory, cdc.testing.fixtures has real servers, and cdc.testing.windows kills it at each
instant that matters. The guarantees, with their limits, are in docs/consuming.md.
"""

from cdc.consumer.app import Consumer
from cdc.consumer.brokers import Create
from cdc.consumer.event import Event
from cdc.consumer.resources import Resource
from cdc.consumer.retry import Retry, TryAgain, Unprocessable

__all__ = ["Consumer", "Create", "Event", "Resource", "Retry", "TryAgain", "Unprocessable"]
