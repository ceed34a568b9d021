"""The doctor's questions to Redis: what it may forget, and what it cannot be. Makes nothing."""

from __future__ import annotations

from functools import partial

from cdc.audit.check_postgres import no_partitions
from cdc.audit.finding import Case, Doctor, Patience, Told, failed, nothing, ok, warning
from cdc.redis.positions import facts, flaws
from cdc.redis.publisher import RedisPublisher


def doctor(publisher: RedisPublisher) -> Doctor:
    """Return what is asked of Redis."""
    questions = {
        "server": partial(_server, publisher),
        "position": partial(_position, publisher),
        "durability": partial(_durability, publisher),
        "topics": partial(_topics, publisher),
        "partition column": partial(no_partitions, "Redis"),
    }
    return Doctor("redis", publisher, partial(_reached, publisher), questions, lambda: False)


def _reached(publisher: RedisPublisher, patience: Patience) -> Told:
    told = patience(lambda: facts(publisher.linked(), nothing))
    yield ok(f"Redis {'.'.join(map(str, told.version))}, {told.role}, {told.replicas} replica(s)")


def _server(publisher: RedisPublisher, _: Case) -> Told:
    wrong = flaws(facts(publisher.linked(), nothing))
    for what, fix in wrong:
        yield failed(what, fix)
    if not wrong:
        yield ok("nothing of ours is ever evicted")


def _position(publisher: RedisPublisher, _: Case) -> Told:
    publisher.positions.verify(nothing)
    yield ok(f"{publisher.positions.topic!r} is there")


def _durability(publisher: RedisPublisher, _: Case) -> Told:
    told, options = facts(publisher.linked(), nothing), publisher.options
    if not told.appendonly:
        what = "appendonly is no: a Redis that dies loses what came since its last snapshot, and the pipeline refuses to go on then"
        yield warning(what, "set appendonly yes")
    elif options.wait_fsync:
        yield ok("PostgreSQL forgets nothing before it is on Redis's disk")
    else:
        what = (
            "a commit is confirmed before it is on disk: a Redis that dies may lose its last second, and the pipeline refuses to go on then"
        )
        yield warning(what, "set redis.wait_fsync (Redis 7.2 or newer), or appendfsync always")
    if options.wait_replicas > told.replicas:
        what = f"redis.wait_replicas is {options.wait_replicas}, and {told.replicas} replica(s) are connected: nothing can be committed"
        yield failed(what, "bring the replicas back, or lower it")
    elif told.replicas and not options.wait_replicas:
        what = "a commit is confirmed before a replica has it: a failover may lose it, and the pipeline refuses to go on then"
        yield warning(what, "set redis.wait_replicas")


def _topics(publisher: RedisPublisher, case: Case) -> Told:
    for topic in case.static_topics:
        if wrong := publisher.unfit(topic, nothing):
            yield failed(wrong, "see topics.route and topics.dead_letter")
        else:
            yield ok(f"topic {topic!r} can take records")
