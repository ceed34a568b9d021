"""TLS and SASL to Kafka, TLS with client certificates to PostgreSQL: the whole way, and each thing that is wrong.

Certificates are made here. Every server's name is 127.0.0.1, so `localhost` is a wrong host.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
import trustme
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc.devstack.kafka import KafkaBroker
from cdc.devstack.postgres import NEWEST, PostgresServer
from cdc.devstack.process import held_ports, port_of
from tests.conftest import Pipelines, drop_database, running
from tests.pipeline import POSTGRES_VERSION, Answer, Pipeline
from tests.waiting import wait_for

pytestmark = pytest.mark.servers

PASSWORD = "canary-right"
WRONG = "canary-wrong"
KEY_PASSWORD = "canary-key"
LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
EXPIRED: dict[str, Any] = {"not_before": LONG_AGO, "not_after": LONG_AGO + dt.timedelta(days=1)}
SERVER_NAME = "127.0.0.1"

WITH_TLS = 15
"""Stands in for the newest PostgreSQL, which comes from pip and was built without TLS; those from Maven have it."""


class Authority:
    """A certificate authority, and the files of what it signs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._ca = trustme.CA()
        self.folder = folder
        self.root = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.root)

    def sign(self, name: str, *identities: str, password: str | None = None, **how: Any) -> Path:  # noqa: ANN401 - trustme's options
        """Make NAME.pem, NAME.key and, as Kafka wants a key store, NAME.both; return the path without a suffix."""
        leaf = self._ca.issue_cert(*identities, **how)
        key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
        encryption = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        certificate = b"".join(pem.bytes() for pem in leaf.cert_chain_pems)
        path = self.folder / name
        for suffix, content in ((".pem", certificate), (".key", secret), (".both", secret + certificate)):
            path.with_suffix(suffix).write_bytes(content)
            path.with_suffix(suffix).chmod(0o600)
        return path


@dataclass
class Kafka:
    """A broker with a port for each kind of listener, and users for SASL."""

    broker: KafkaBroker
    secure: int
    mutual: int
    expired: int

    def password(self, user: str, password: str) -> None:
        """Make a user, or change the password, for both kinds of SCRAM."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers, "log_level": 0})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            wanted = UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
            for done in admin.alter_user_scram_credentials([wanted]).values():
                done.result(30)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that nobody trusts."""
    return Authority(tmp_path_factory.mktemp("tls") / "theirs")


@pytest.fixture(scope="module")
def secure_kafka(ours: Authority) -> Iterator[Kafka]:
    good = ours.sign("broker", SERVER_NAME).with_suffix(".both")
    old = ours.sign("old-broker", SERVER_NAME, **EXPIRED).with_suffix(".both")
    held = held_ports(5)
    plain, controller, secure, mutual, expired = map(port_of, held)
    own = {"PLAINTEXT": plain, "SECURE": secure, "MUTUAL": mutual, "EXPIRED": expired}
    advertised = ",".join(f"{name}://{SERVER_NAME}:{port}" for name, port in own.items())
    module = "org.apache.kafka.common.security"
    properties = {
        "listeners": f"{advertised},CONTROLLER://{SERVER_NAME}:{controller}",
        "advertised.listeners": advertised,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL,MUTUAL:SSL,EXPIRED:SSL",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
        "listener.name.secure.scram-sha-256.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        "listener.name.secure.scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        "listener.name.secure.plain.sasl.jaas.config": f'{module}.plain.PlainLoginModule required user_cdc="{PASSWORD}";',
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.truststore.type": "PEM",
        "listener.name.mutual.ssl.truststore.location": str(ours.root),
    }
    for name, store in (("secure", good), ("mutual", good), ("expired", old)):
        properties |= {f"listener.name.{name}.ssl.keystore.type": "PEM", f"listener.name.{name}.ssl.keystore.location": str(store)}
    with running(KafkaBroker(properties=properties, ports=(plain, controller))) as broker:
        made = Kafka(broker, secure, mutual, expired)
        made.password("cdc", PASSWORD)
        yield made
    for each in held:
        each.close()


ACCESS = f"""
host all postgres {SERVER_NAME}/32 trust
hostssl all cdc {SERVER_NAME}/32 cert
hostssl all cdc_password {SERVER_NAME}/32 scram-sha-256
"""


@pytest.fixture(scope="module")
def secure_postgres(ours: Authority) -> Iterator[PostgresServer]:
    ours.sign("postgres", SERVER_NAME)
    files = {"ssl_cert_file": "server.crt", "ssl_key_file": "server.key", "ssl_ca_file": "root.crt"}
    version = POSTGRES_VERSION if POSTGRES_VERSION < NEWEST else WITH_TLS
    server = PostgresServer(version=version, settings={"ssl": "on", **files})
    server.prepare()
    certified(server, ours.folder / "postgres")
    server.put("root.crt", ours.root.read_bytes())
    server.put("pg_hba.conf", ACCESS.encode())
    with running(server):
        yield server


def certified(server: PostgresServer, by: Path) -> None:
    """Give the server another certificate."""
    server.put("server.key", by.with_suffix(".key").read_bytes())
    server.put("server.crt", by.with_suffix(".pem").read_bytes())
    server.reload()


@pytest.fixture
def secured(pipelines: Pipelines, secure_postgres: PostgresServer, secure_kafka: Kafka, ours: Authority, unique: str) -> Iterator[Pipeline]:
    """A pipeline whose both ends are protected: its role by a certificate, its user by SCRAM; the test itself comes in by the back door."""
    with psycopg.connect(secure_postgres.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(unique)))
        pipeline = pipelines(secure_postgres.dsn(unique), secure_kafka.broker.bootstrap_servers)
        client = ours.sign("client", "cdc.example", common_name="cdc")
        trusting = make_conninfo(pipeline.dsn, sslmode="verify-full", sslrootcert=str(ours.root))
        pipeline.settings["postgres.admin_dsn"] = trusting
        pipeline.settings["postgres.dsn"] = make_conninfo(
            trusting, user="cdc", sslcert=str(client.with_suffix(".pem")), sslkey=str(client.with_suffix(".key"))
        )
        pipeline.kafka(
            bootstrap_servers=f"{SERVER_NAME}:{secure_kafka.secure}",
            security_protocol="SASL_SSL",
            ssl_ca_location=str(ours.root),
            sasl_mechanism="SCRAM-SHA-512",
            sasl_username="cdc",
            sasl_password=PASSWORD,
        )
        yield pipeline
        for process in pipeline.processes:
            pipeline.kill(process)
        pipeline.hang_up()
        drop_database(admin, unique)
        for role in ("cdc", "cdc_password"):
            admin.execute(f"DROP ROLE IF EXISTS {role}")


def files(path: Path) -> dict[str, str]:
    """A client's certificate and key, as libpq names them."""
    return {"sslcert": str(path.with_suffix(".pem")), "sslkey": str(path.with_suffix(".key"))}


def to_mutual(pipeline: Pipeline, kafka: Kafka, path: Path, **more: object) -> None:
    """Come to the listener that wants certificates, with this one."""
    pipeline.kafka(
        bootstrap_servers=f"{SERVER_NAME}:{kafka.mutual}",
        security_protocol="SSL",
        ssl_certificate_location=str(path.with_suffix(".pem")),
        ssl_key_location=str(path.with_suffix(".key")),
        **more,
    )


def refused(answer: Answer, code: int, *words: str) -> None:
    """Check how a command ended: one line, with these words, and nobody's secret."""
    assert answer.code == code, answer.err[-3000:]
    for word in words:
        assert word in answer.line, answer.line
    assert "canary" not in answer.err + answer.out


def goes(pipeline: Pipeline, *arguments: str) -> None:
    """Go the whole way, from nothing to the audit, and see that no secret was told."""
    pipeline.init()
    checked = pipeline.here("check", "--json")
    assert checked.code == 0, checked.err
    pipeline.started(*arguments)
    pipeline.insert(1, 3)
    pipeline.wait_numbers([1, 2, 3])
    status = pipeline.get("/status")[1] + pipeline.get("/metrics")[1] + pipeline.get("/")[1]
    pipeline.stop()
    verified = pipeline.here("verify", "--json")
    assert verified.code == 0, verified.err
    assert json.loads(verified.out.splitlines()[-1])["events"] == 3
    tailed = pipeline.here("dead-letters", "list")
    assert tailed.code == 0, tailed.err
    assert "canary" not in checked.out + checked.err + status + verified.out + verified.err + tailed.err + pipeline.log


# What is right


def test_the_whole_way_with_certificates_and_scram(secured: Pipeline) -> None:
    goes(secured)
    attributes = secured.execute("SELECT rolreplication, rolsuper FROM pg_roles WHERE rolname = 'cdc'")
    assert attributes == [(True, False)], "init made a role that may replicate, and nothing more"


def test_the_whole_way_with_secrets_in_files(secured: Pipeline, secure_kafka: Kafka, ours: Authority) -> None:
    """PostgreSQL by password over TLS, Kafka by an encrypted key: whatever is secret stands in a file of its own."""
    dsn = make_conninfo(secured.settings["postgres.admin_dsn"], user="cdc_password", password=PASSWORD)
    (secured.folder / "dsn").write_text(dsn + "\n")
    (secured.folder / "key-password").write_text(KEY_PASSWORD + "\n")
    secured.settings |= {"postgres.dsn": None, "postgres.dsn_file": "dsn", "kafka.ssl.key.password_file": "key-password"}
    to_mutual(secured, secure_kafka, ours.sign("locked", "client.example", password=KEY_PASSWORD), sasl_mechanism=None)
    secured.kafka(sasl_username=None, sasl_password=None)
    goes(secured)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
def test_the_other_mechanisms_over_tls(secured: Pipeline, mechanism: str) -> None:
    (secured.folder / "password").write_text(PASSWORD + "\n")
    secured.settings |= {"kafka.sasl.password": None, "kafka.sasl.password_file": "password"}
    secured.kafka(sasl_mechanism=mechanism)
    secured.init()
    assert secured.here("check").code == 0
    secured.kafka(sasl_password=WRONG)
    secured.settings["kafka.sasl.password_file"] = None
    refused(secured.here("init"), 5, "uthentication failed", "sasl.password")


# What is wrong at PostgreSQL


Change = Callable[[Authority, Authority], dict[str, str]]

AT_POSTGRES: dict[str, tuple[Change, int, tuple[str, ...]]] = {
    "an authority that did not sign": (
        lambda _, theirs: {"sslrootcert": str(theirs.root)},
        3,
        ("certificate verify failed", "sslrootcert"),
    ),
    "another host": (lambda *_: {"host": "localhost"}, 3, ("does not match host name", "set host")),
    "no certificate": (lambda *_: {"sslcert": "/nowhere", "sslkey": "/nowhere"}, 3, ("valid client certificate", "sslcert")),
    "a certificate that nobody trusts": (
        lambda _, theirs: files(theirs.sign("client", "client.example", common_name="cdc")),
        3,
        ("unknown ca", "sslcert"),
    ),
    "an old certificate": (
        lambda ours, _: files(ours.sign("old", "client.example", common_name="cdc", **EXPIRED)),
        3,
        ("certificate expired", "sslcert"),
    ),
    "somebody else's certificate": (
        lambda ours, _: files(ours.sign("other", "client.example", common_name="other")),
        3,
        ("certificate authentication failed", "common name"),
    ),
    "a key's wrong password": (
        lambda ours, _: files(ours.sign("locked", "client.example", common_name="cdc", password=KEY_PASSWORD)) | {"sslpassword": WRONG},
        2,
        ("private key file", "sslpassword"),
    ),
    "another key": (
        lambda _, theirs: {"sslkey": files(theirs.sign("key", "client.example"))["sslkey"]},
        2,
        ("private key file", "sslkey"),
    ),
    "no root": (lambda *_: {"sslrootcert": "/nowhere"}, 2, ("root certificate file", "does not exist", "sslrootcert")),
    "no TLS": (lambda *_: {"sslmode": "disable"}, 3, ("no encryption", "sslmode")),
    "a wrong password": (lambda *_: {"user": "cdc_password", "password": WRONG}, 3, ("password authentication failed", "password")),
}
"""What is changed in the connection string -> the exit code, and words of the line."""


def test_what_is_wrong_at_postgres(secured: Pipeline, ours: Authority, theirs: Authority) -> None:
    secured.init()
    secured.execute("CREATE ROLE cdc_password LOGIN REPLICATION PASSWORD 'canary-right'")
    right = secured.settings["postgres.dsn"]
    for change, code, words in AT_POSTGRES.values():
        secured.settings["postgres.dsn"] = make_conninfo(right, **change(ours, theirs))
        refused(secured.here("init", "--timeout", "0"), code, *words)
    refused(secured.command("run"), 3, "password authentication failed")
    secured.settings["postgres.dsn"] = right
    assert secured.here("init").code == 0


def test_an_old_certificate_of_postgres(secured: Pipeline, secure_postgres: PostgresServer, ours: Authority) -> None:
    secured.init()
    certified(secure_postgres, ours.sign("old-postgres", SERVER_NAME, **EXPIRED))
    wait_for(lambda: secured.here("check", "--timeout", "0").code != 0, 30, "the old certificate is shown")
    answer = secured.command("run")
    certified(secure_postgres, ours.folder / "postgres")
    refused(answer, 3, "certificate verify failed", "expired")
    wait_for(lambda: secured.here("check", "--timeout", "0").code == 0, 30, "the good certificate is shown")


def test_a_postgres_without_tls(secured: Pipeline, database: str) -> None:
    secured.settings["postgres.dsn"] = make_conninfo(database, sslmode="require")
    secured.settings["postgres.admin_dsn"] = None
    refused(secured.here("init", "--timeout", "0"), 3, "does not support SSL", "ssl = on")


# What is wrong at Kafka


class Wrong(NamedTuple):
    """What a case is made of."""

    pipeline: Pipeline
    kafka: Kafka
    ours: Authority
    theirs: Authority


AT_KAFKA: dict[str, tuple[Callable[[Wrong], object], int, tuple[str, ...]]] = {
    "an authority that did not sign": (
        lambda to: to.pipeline.kafka(ssl_ca_location=str(to.theirs.root)),
        5,
        ("certificate verify failed", "ssl.ca.location"),
    ),
    "another host": (
        lambda to: to.pipeline.kafka(bootstrap_servers=f"localhost:{to.kafka.secure}", broker_address_family="v4"),
        5,
        ("certificate verify failed", "bootstrap.servers"),
    ),
    "an old certificate": (
        lambda to: to.pipeline.kafka(bootstrap_servers=f"{SERVER_NAME}:{to.kafka.expired}", security_protocol="SSL"),
        5,
        ("certificate verify failed", "expired"),
    ),
    "no certificate of ours": (
        lambda to: to.pipeline.kafka(bootstrap_servers=f"{SERVER_NAME}:{to.kafka.mutual}", security_protocol="SSL"),
        5,
        ("certificate required", "ssl.certificate.location"),
    ),
    "a certificate that nobody trusts": (
        lambda to: to_mutual(to.pipeline, to.kafka, to.theirs.sign("kafka-client", "client.example")),
        5,
        ("certificate required", "ssl.certificate.location"),
    ),
    "an old certificate of ours": (
        lambda to: to_mutual(to.pipeline, to.kafka, to.ours.sign("old-client", "client.example", **EXPIRED)),
        5,
        ("alert certificate", "ssl.certificate.location"),
    ),
    "a key's wrong password": (
        lambda to: to_mutual(
            to.pipeline,
            to.kafka,
            to.ours.sign("locked-client", "client.example", password=KEY_PASSWORD),
            ssl_key_password=WRONG,
        ),
        2,
        ("ssl.key.location", "ssl.key.password"),
    ),
    "no authority": (lambda to: to.pipeline.kafka(ssl_ca_location="/nowhere"), 2, ("ssl.ca.location",)),
    "a wrong password": (lambda to: to.pipeline.kafka(sasl_password=WRONG), 5, ("uthentication failed", "sasl.password")),
    "plain to SASL_SSL": (lambda to: to.pipeline.kafka(security_protocol="PLAINTEXT"), 5, ("security.protocol",)),
    "SASL_PLAINTEXT to SASL_SSL": (lambda to: to.pipeline.kafka(security_protocol="SASL_PLAINTEXT"), 5, ("security.protocol",)),
    "SSL to SASL_SSL": (lambda to: to.pipeline.kafka(security_protocol="SSL"), 5, ("security.protocol",)),
    "TLS to plain": (lambda to: to.pipeline.kafka(bootstrap_servers=to.pipeline.bootstrap), 5, ("security.protocol",)),
}
"""What is changed in the settings -> the exit code, and words of the line."""


@pytest.mark.parametrize("case", list(AT_KAFKA))
def test_what_is_wrong_at_kafka(secured: Pipeline, secure_kafka: Kafka, ours: Authority, theirs: Authority, case: str) -> None:
    change, code, words = AT_KAFKA[case]
    secured.settings["postgres.dsn"] = secured.dsn
    change(Wrong(secured, secure_kafka, ours, theirs))
    refused(secured.here("init", "--create-table", "--timeout", "0"), code, *words)


def test_a_run_that_no_broker_can_prove_itself_to_ends(secured: Pipeline, theirs: Authority) -> None:
    secured.init()
    right = secured.settings["kafka.ssl.ca.location"]
    secured.kafka(ssl_ca_location=str(theirs.root))
    refused(secured.command("run"), 5, "certificate verify failed", "ssl.ca.location")
    secured.kafka(ssl_ca_location=right)
    secured.started()


def test_a_run_that_speaks_another_protocol_waits_and_says_so(secured: Pipeline) -> None:
    secured.init()
    secured.kafka(security_protocol="PLAINTEXT")
    secured.start()
    wait_for(lambda: "security.protocol" in secured.get("/status")[1], 60, "the status says what may be wrong")
    assert not secured.ready()
    secured.stop()
    assert "canary" not in secured.log


@pytest.mark.parametrize("command", [("verify",), ("tail",), ("recover", "--yes")], ids=" ".join)
def test_whoever_reads_says_so(secured: Pipeline, theirs: Authority, command: tuple[str, ...]) -> None:
    secured.init()
    secured.kafka(ssl_ca_location=str(theirs.root))
    refused(secured.here(*command), 5, "certificate verify failed", "ssl.ca.location")


def test_a_password_that_is_changed_while_streaming(secured: Pipeline, secure_kafka: Kafka, unique: str) -> None:
    """A broker asks for it when somebody connects: here, after its restart. Nothing is lost, and right again it goes on."""
    secure_kafka.password(unique, PASSWORD)
    secured.kafka(sasl_username=unique)
    secured.init()
    secured.started()
    secured.insert(1)
    secured.wait_numbers([1])
    secure_kafka.broker.restart()
    secured.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", (secured.slot_name,))
    secured.insert(2)
    secured.wait_numbers([1, 2])  # a restart is no refusal, on either end
    secure_kafka.password(unique, WRONG)
    secure_kafka.broker.restart()
    secured.insert(3)
    refused(secured.wait_exit(), 5, "uthentication failed", "sasl.password")
    secure_kafka.password(unique, PASSWORD)
    secured.started()
    secured.wait_numbers([1, 2, 3])
    secured.stop()


# Names


ODD = 'Ödd "n" \'s; -- %s $do$ \\'
"""A name that falls apart wherever it is not quoted."""


def test_names_are_quoted_from_init_to_verify(pipelines: Pipelines, postgres_dsn: str, kafka: str, unique: str) -> None:
    def named(what: str) -> str:
        return f"{ODD} {what} {unique}"

    def quoted(name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(named("database"))))
        try:
            pipeline = pipelines(make_conninfo(postgres_dsn, dbname=named("database")), kafka)
            schema, table, publication, role = (named(what) for what in ("Schema", "Table", "Publication", "Role"))
            own = {key: f"{ODD} {key}" for key in ("id", "aggregatetype", "aggregateid", "type", "payload", "occurred_at")}
            pipeline.settings |= {
                "postgres.dsn": make_conninfo(pipeline.dsn, user=role),
                "postgres.publication": publication,
                "outbox.table": f"{quoted(schema)}.{quoted(table)}",
                **{f"outbox.columns.{key}": column for key, column in own.items()},
            }
            outbox = sql.Identifier(schema, table)
            kinds = {"id": "uuid PRIMARY KEY DEFAULT gen_random_uuid()", "payload": "jsonb", "occurred_at": "timestamptz DEFAULT now()"}
            columns = [sql.SQL("{} ").format(sql.Identifier(own[key])) + sql.SQL(kinds.get(key, "text")) for key in own]
            pipeline.connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
            pipeline.connection.execute(
                sql.SQL("CREATE TABLE {} ({}) PARTITION BY HASH ({})").format(
                    outbox, sql.SQL(", ").join(columns), sql.Identifier(own["id"])
                )
            )
            part = sql.Identifier(schema, f"{ODD} part")
            pipeline.connection.execute(
                sql.SQL("CREATE TABLE {} PARTITION OF {} FOR VALUES WITH (MODULUS 1, REMAINDER 0)").format(part, outbox)
            )

            def insert(*numbers: int) -> None:
                names = sql.SQL(", ").join(sql.Identifier(own[key]) for key in ("aggregatetype", "aggregateid", "type", "payload"))
                statement = sql.SQL("INSERT INTO {} ({}) VALUES ('thing', 'k', 'Thing', {})")
                for number in numbers:
                    payload = sql.Literal(json.dumps({"n": number, "text": ODD}))
                    pipeline.connection.execute(statement.format(outbox, names, payload))

            insert(1)
            pipeline.execute(pipeline.here("init", "--sql").out)
            pipeline.init("--existing", "publish", "--where", f"{quoted(own['type'])} = 'Thing'", create_table=False)
            checked = pipeline.here("check")
            assert checked.code == 0, checked.out
            pipeline.started()
            insert(2, 3)
            pipeline.wait_numbers([1, 2, 3])
            pipeline.stop()
            for command in (("verify",), ("replay", "--key", "k", "--yes"), ("verify", "--since", "2020-01-01T00:00:00Z")):
                done = pipeline.here(*command)
                assert done.code == 0, done.err
            assert len(pipeline.events()) == 6, "once, and once more by the replay"
            pipeline.execute("SELECT pg_drop_replication_slot(%s)", (pipeline.slot_name,))
            insert(4)
            recovered = pipeline.here("recover", "--yes")
            assert recovered.code == 0, recovered.err
            assert pipeline.numbers()[-1] == 4
        finally:
            pipeline.hang_up()
            drop_database(admin, named("database"))
            admin.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(named("Role"))))
