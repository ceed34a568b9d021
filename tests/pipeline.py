"""The real process on real servers: `python -m cdc run` as a child, and a look at both of its ends.

Strategy: a Pipeline has a name of its own, and with it a slot, topics and a folder, so tests share servers and never meet.
`init` runs in this process, because a new interpreter for each would cost more than all else; `run` is always a child that
dies with us. What is published is judged by a plain consumer and fastavro, not by the product's own reader.

An event is told by its number `n`, which stands in the payload.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

import fastavro
import psycopg
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from psycopg import sql

from cdc.avro import folder as schema_folder
from cdc.cli import main
from cdc.devstack.postgres import NEWEST
from cdc.devstack.process import held_ports, port_of, start
from cdc.position import Lsn
from tests.waiting import POLL_S, wait_for

POSTGRES_VERSION = int(os.environ.get("TEST_POSTGRES_VERSION", NEWEST))
"""Of the servers that tests share; `make test-matrix` runs them on each."""

READY_WITHIN_S = 60.0
"""Starting an interpreter takes a second, and ten on a machine that is busy with other tests."""

SCHEMA = {
    "type": "record",
    "name": "Thing",
    "doc": "What the tests publish.",
    "fields": [{"name": "n", "type": "long"}, {"name": "text", "type": "string", "default": ""}],
}

INSERT = (
    "INSERT INTO {} (aggregatetype, aggregateid, type, payload) SELECT 'thing', %(key)s, 'Thing',"
    " jsonb_build_object('n', n, 'text', %(text)s::text) FROM generate_series(%(first)s::int, %(last)s::int) n"
)


class Event(NamedTuple):
    """A record as a plain consumer sees it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes]
    timestamp_ms: int

    @property
    def n(self) -> int:
        """The number in the payload."""
        return int(decode(self.value, SCHEMA)["n"])


@dataclass(frozen=True, slots=True)
class Slot:
    """What pg_replication_slots says."""

    active_pid: int | None
    confirmed: Lsn
    restart: Lsn


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line that says what was wrong; fails when there are more, or when it is not whole."""
        return the_line(self.err)


def the_line(text: str) -> str:
    """Return the one line for people among a command's stderr, and see that nothing else there is a trace."""
    lines = text.splitlines()
    found = [line for line in lines if line.startswith("cdc: ")]
    assert len(found) == 1, text
    assert lines[-1] == found[0], text
    assert re.fullmatch(r"cdc: \S.*\. Fix: \S.*", found[0]), found[0]
    assert "Traceback" not in text
    assert "cdc/pipeline/" not in text, "a trace was logged"
    return found[0]


def decode(value: bytes | None, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Decode Confluent's wire format with fastavro; every byte must be read."""
    assert value is not None
    assert value[0] == 0
    assert int.from_bytes(value[1:5], "big") > 0
    body = io.BytesIO(value[5:])
    document = fastavro.schemaless_reader(body, fastavro.parse_schema(dict(schema)), None)
    assert body.read() == b""
    return cast("dict[str, Any]", document)


def sizes(short: object, full: object) -> pytest.MarkDecorator:
    """Run a test at its short and, in the soak, at its full size."""
    marks = [pytest.mark.soak, pytest.mark.timeout(1800)]
    return pytest.mark.parametrize("size", [pytest.param(short, id="short"), pytest.param(full, id="full", marks=marks)])


def since(version: int) -> pytest.MarkDecorator:
    """Skip a test where the shared servers are older than what it is about."""
    return pytest.mark.skipif(version > POSTGRES_VERSION, reason=f"PostgreSQL has it since {version}")


def write_schemas(folder: Path, schemas: Mapping[str, Mapping[str, Any]] | None = None, *, locked: bool = True) -> None:
    """Write version 1 of each subject, and lock it."""
    for subject, schema in (schemas or {"Thing": SCHEMA}).items():
        (folder / subject).mkdir(parents=True)
        (folder / subject / "1.avsc").write_text(json.dumps(schema))
    if locked:
        contents = schema_folder.scan(folder)
        files = [file for versions in contents.files.values() for file in versions]
        schema_folder.write_lock(folder, contents.lock.added((file.subject, file.number, file.fingerprint) for file in files))


def environment() -> dict[str, str]:
    """Our environment without the settings of anybody's pipeline."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CDC_") or name == "CDC_CACHE_DIR"}


def cdc(*arguments: str | Path, timeout_s: float = 90.0) -> Answer:
    """Run a command to its end, as a process of its own."""
    command = [sys.executable, "-m", "cdc", *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout_s, env=environment())
    return Answer(done.returncode, done.stdout, done.stderr)


class Pipeline:
    """One pipeline: its settings, its table, its child process and its topics."""

    def __init__(self, folder: Path, name: str, dsn: str, bootstrap: str) -> None:
        self.folder = folder
        self.name = name
        self.dsn = dsn
        self.bootstrap = bootstrap
        self.slot_name = f"cdc_{name}"
        self.topic = f"{name}.thing"
        self.dead_letter_topic = f"cdc.{name}.dead-letter"
        self.position_topic = f"_cdc.{name}.position"
        self.config = folder / "cdc.toml"
        self._held = held_ports(1)
        self.port = port_of(self._held[0])
        self.processes: list[subprocess.Popen[bytes]] = []
        self.settings: dict[str, Any] = {
            "name": name,
            "postgres.dsn": dsn,
            "postgres.status_interval": "500ms",
            "kafka.bootstrap.servers": bootstrap,
            "kafka.topic.metadata.propagation.max.ms": 500,
            "topics.route": f"{name}.{{aggregatetype}}",
            "topics.create.partitions": 1,
            "topics.create.replication_factor": 1,
            "http.listen": f"127.0.0.1:{self.port}",
        }
        self._connection: psycopg.Connection[Any] | None = None

    def __repr__(self) -> str:
        return f"<Pipeline {self.name} running={[process.pid for process in self.processes if process.poll() is None]}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self.processes:
            self.kill(process)
        self.hang_up()
        for held in self._held:
            held.close()
        print(self.log[-4000:])  # shown by pytest when the test failed

    def another_port(self) -> int:
        """A port of ours on which nobody listens yet: for a second instance, or as the address of a server that is not there."""
        self._held += held_ports(1)
        return port_of(self._held[-1])

    # Settings

    def set(self, **settings: Any) -> Self:  # noqa: ANN401 - any value that TOML has
        """Change settings; two underscores stand for a dot."""
        self.settings |= {name.replace("__", "."): value for name, value in settings.items()}
        return self

    def kafka(self, **properties: object) -> Self:
        """Change librdkafka's properties; an underscore stands for a dot."""
        self.settings |= {f"kafka.{name.replace('_', '.')}": value for name, value in properties.items()}
        return self

    def write(self) -> Path:
        """Write cdc.toml, and a locked schema folder if there is none."""
        if not (self.folder / "schemas").exists():
            write_schemas(self.folder / "schemas")
        tables: dict[str, list[str]] = {"": []}
        for path, value in self.settings.items():
            if value is None:
                continue
            table, _, key = path.rpartition(".")
            if path.startswith("kafka."):
                table, key = "kafka", path.removeprefix("kafka.")
            text = _toml(value)
            tables.setdefault(table, []).append(f"{json.dumps(key)} = {text}")
        self.config.write_text("".join((f"[{table}]\n" if table else "") + "\n".join(lines) + "\n" for table, lines in tables.items()))
        return self.config

    # PostgreSQL's end

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """An ordinary connection in autocommit."""
        if self._connection is None or self._connection.closed or self._connection.broken:
            self._connection = psycopg.connect(self.dsn, autocommit=True)
        return self._connection

    def hang_up(self) -> None:
        """Close that connection; the next statement opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def execute(self, statement: str, parameters: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
        """Run one statement in a transaction of its own."""
        cursor = self.connection.execute(statement.encode(), parameters)
        return cursor.fetchall() if cursor.description else []

    def insert(
        self, first: int, last: int | None = None, *, key: str = "k", text: str = "", on: psycopg.Connection[Any] | None = None
    ) -> None:
        """Insert events with these numbers in one statement."""
        parameters = {"key": key, "text": text, "first": first, "last": first if last is None else last}
        (on or self.connection).execute(sql.SQL(INSERT).format(self.table), parameters)

    @property
    def table(self) -> sql.Identifier:
        """The outbox table."""
        return sql.Identifier("public", "outbox")

    def noise(self, megabytes: int = 1) -> None:
        """Write so much log that has nothing to do with the outbox."""
        self.execute("CREATE TABLE IF NOT EXISTS noise (filler text)")
        self.execute("ALTER TABLE noise ALTER COLUMN filler SET STORAGE PLAIN")
        for _ in range(megabytes):
            self.execute("INSERT INTO noise SELECT repeat('x', 4000) FROM generate_series(1, 250)")

    def slot(self) -> Slot:
        """The slot now."""
        [(pid, confirmed, restart)] = self.execute(
            "SELECT active_pid, confirmed_flush_lsn::text, restart_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
            (self.slot_name,),
        )
        return Slot(pid, Lsn.parse(confirmed), Lsn.parse(restart))

    def lsn(self) -> Lsn:
        """The end of the log now."""
        [(text,)] = self.execute("SELECT pg_current_wal_lsn()::text")
        return Lsn.parse(text)

    def wait_confirmed(self, lsn: Lsn | None = None, deadline_s: float = 30.0) -> Lsn:
        """Wait until the slot has been told of everything up to now."""
        target = self.lsn() if lsn is None else lsn
        wait_for(lambda: self.slot().confirmed >= target, deadline_s, f"the slot follows to {target}")
        return target

    # Commands and the child process

    def here(self, *arguments: str) -> Answer:
        """Run a command with these settings in this process, which saves starting an interpreter."""
        out, said = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(out):
            code = main([*arguments, "--config", str(self.write())])
        return Answer(code, out.getvalue(), said.getvalue())

    def init(self, *arguments: str, create_table: bool = True) -> None:
        """`cdc init`, in this process; must succeed."""
        made = self.here("init", *(["--create-table"] if create_table else []), *arguments)
        assert made.code == 0, made.err

    def command(self, *arguments: str, timeout_s: float = 90.0) -> Answer:
        """Run another command with these settings, as a process of its own."""
        return cdc(*arguments, "--config", self.write(), timeout_s=timeout_s)

    def start(self, *arguments: str, port: int | None = None, environment_: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """`cdc run` as a child; the first one logs to run-1.log, the next one to run-2.log."""
        config = self.write()
        log = self.folder / f"run-{len(self.processes) + 1}.log"
        listen = ["--set", f"http.listen=127.0.0.1:{port}"] if port else []
        process = start(
            [sys.executable, "-m", "cdc", "run", "--config", config, *listen, *arguments],
            log,
            dies_with_us=True,
            environment={**dict.fromkeys(set(os.environ) - set(environment()), ""), **(environment_ or {})} or None,
        )
        self.processes.append(process)
        return process

    def started(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a child and wait until it streams."""
        process = self.start(*arguments)
        self.wait_ready()
        return process

    def log_of(self, process: subprocess.Popen[bytes]) -> str:
        """All that a child has written."""
        path = self.folder / f"run-{self.processes.index(process) + 1}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The child that was started last."""
        return self.processes[-1]

    @property
    def log(self) -> str:
        """All that the children have written, one after the other."""
        return "".join(self.log_of(process) for process in self.processes)

    def kill(self, process: subprocess.Popen[bytes] | None = None) -> None:
        """SIGKILL."""
        target = process or self.process
        if target.poll() is None:
            target.kill()
            target.wait()

    def terminate(self, process: subprocess.Popen[bytes] | None = None, timeout_s: float = 30.0) -> int:
        """SIGTERM, and the exit code."""
        target = process or self.process
        target.send_signal(signal.SIGTERM)
        return target.wait(timeout_s)

    def stop(self) -> None:
        """SIGTERM; must end with 0."""
        code = self.terminate()
        assert code == 0, self.log_of(self.process)[-3000:]

    def wait_exit(self, deadline_s: float = READY_WITHIN_S) -> Answer:
        """Wait until the child ends by itself."""
        code = self.process.wait(deadline_s)
        return Answer(code, "", self.log_of(self.process))

    # HTTP

    def get(self, path: str, port: int | None = None) -> tuple[int, str]:
        """Ask the endpoint; (0, "") when nobody answers."""
        client = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=5)
        try:
            client.request("GET", path)
            answer = client.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            client.close()

    def status(self, port: int | None = None) -> dict[str, Any]:
        """`/status`."""
        document: dict[str, Any] = json.loads(self.get("/status", port)[1])
        return document

    def ready(self, port: int | None = None) -> bool:
        """Whether it owns the slot and streams."""
        return self.get("/health/ready", port)[0] == 200

    def wait_ready(self, port: int | None = None, deadline_s: float = READY_WITHIN_S) -> None:
        """Wait until it streams; fails at once when the last child has ended."""

        def streams() -> bool:
            assert self.process.poll() is None, self.log_of(self.process)[-3000:]
            return self.ready(port)

        wait_for(streams, deadline_s, f"{self.name} is ready")

    # Kafka's end

    def events(self, *topics: str, isolation: str = "read_committed") -> list[Event]:
        """Everything that a plain consumer finds in the topics now (by default the events' one), by partition and offset."""
        return consume(self.bootstrap, topics or (self.topic,), isolation)

    def numbers(self) -> list[int]:
        """The numbers of the committed events, in topic order."""
        return [event.n for event in self.events()]

    def wait_numbers(self, expected: Sequence[int], deadline_s: float = 60.0) -> None:
        """Wait until all of these have come, then see that they are all, once each and in this order."""
        follow(self.bootstrap, self.topic, len(expected), deadline_s)
        assert self.numbers() == list(expected)

    def evidence(self) -> str:
        """Where both ends and the process stand, for a test that failed: every record with its place, open ones too."""
        lines = [f"{self.slot()} at {self.lsn()}"]
        for topic in (self.topic, self.dead_letter_topic, self.position_topic):
            for event in self.events(topic, isolation="read_uncommitted"):
                said = event.value if topic == self.position_topic else event.headers
                lines.append(f"{topic}[{event.partition}]@{event.offset} {event.timestamp_ms} {said!r}"[:1000])
        return "\n".join([*lines, self.get("/status")[1], self.log])

    def position(self) -> Lsn:
        """The end of the last committed position."""
        return Lsn.parse(json.loads(self.events(self.position_topic)[-1].value or b"")["end_lsn"])

    def make_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        """Make a topic by hand."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        new = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
        for made in admin.create_topics([new]).values():
            made.result(30)


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


def _consumer(bootstrap: str, isolation: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "tests",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "fetch.error.backoff.ms": 50,
            "log_level": 0,
        }
    )


@contextlib.contextmanager
def _reading(bootstrap: str, topics: Sequence[str], isolation: str) -> Iterator[tuple[Consumer, set[tuple[str, int]]]]:
    consumer = _consumer(bootstrap, isolation)
    try:
        places = set()
        for topic in topics:
            described = consumer.list_topics(topic, timeout=30).topics[topic]
            places |= {(topic, number) for number in described.partitions}
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in places])
        yield consumer, places
    finally:
        consumer.close()


def consume(bootstrap: str, topics: Sequence[str], isolation: str = "read_committed") -> list[Event]:
    """Read topics from their beginning to where they end now; a topic that does not exist is empty."""
    found: list[Event] = []
    with _reading(bootstrap, topics, isolation) as (consumer, left):
        deadline = time.monotonic() + 60
        while left:
            for message in consumer.consume(10_000, 0.05):
                place, error = (str(message.topic()), message.partition() or 0), message.error()
                if error is None and place in left:  # what came after its end may be a part of a Kafka transaction
                    found.append(_event(message))
                elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                    left.discard(place)
            assert time.monotonic() < deadline, f"{left} did not end"
    return sorted(found, key=lambda event: event[:3])


def follow(bootstrap: str, topic: str, count: int, deadline_s: float) -> None:
    """Wait until a read_committed consumer has seen so many records."""
    seen = 0
    deadline = time.monotonic() + deadline_s
    while seen < count:
        with _reading(bootstrap, [topic], "read_committed") as (consumer, places):
            while places and seen < count:
                seen += sum(message.error() is None for message in consumer.consume(10_000, 0.05))
                assert time.monotonic() < deadline, f"{seen} of {count} records of {topic} within {deadline_s} s"
        assert time.monotonic() < deadline, f"{topic} does not exist within {deadline_s} s"
        time.sleep(0 if seen else POLL_S)  # between two looks at the fact


def _event(message: Message) -> Event:
    headers = {name: value or b"" for name, value in cast("list[tuple[str, bytes | None]]", message.headers() or [])}
    place = (str(message.topic()), int(message.partition() or 0), int(message.offset() or 0))
    key, value = message.key(), message.value()
    return Event(*place, key, value, headers, message.timestamp()[1])
