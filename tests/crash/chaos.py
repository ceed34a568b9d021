"""Random faults for a given time, the judge watching: the real process on real servers, with a standby beside it.

The kinds are drawn from a bag that is filled anew when it is empty, so that each has its turn; everything random comes from
the seed, but the moments in which it happens do not.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc.devstack.postgres import PostgresServer
from cdc.devstack.process import LOOPBACK
from tests.crash.faults import KINDS, PASSWORD, Field, Kind
from tests.crash.keeper import Keeper
from tests.crash.rounds import DRAIN_S, clean
from tests.crash.spectator import Spectator
from tests.crash.storm import CANARY, Storm, judged
from tests.pipeline import POSTGRES_VERSION, Pipeline
from tests.proxy import Proxy, proxied_kafka

ROLE = "cdc_chaos"

GAP_S = (6.0, 12.0)
"""From one fault's begin to the next, at least: many fall into the recovery from the one before."""

WHOLE_AFTER = 4
"""Faults after which a full recovery is waited for and measured, so that a pipeline that never comes back is not taken for a busy one."""

RECOVERY_S = 120.0


SESSION_MS = 12_000
"""Longer than Kafka is frozen: a broker that has to be let in again leads nothing for a moment, and Kafka 4.4 loses the ends of
transactions then (docs/operating.md). One that is killed is waited for that much longer."""


class Done:
    """What was done, what came of it, and what was found beside the verdict."""

    def __init__(self) -> None:
        self.kinds = Counter[str]()
        self.recoveries: dict[str, float] = {}
        self.findings: list[str] = []

    def recovered(self, name: str, seconds: float) -> None:
        """Note how long a recovery from this kind took."""
        self.recoveries[name] = max(self.recoveries.get(name, 0.0), round(seconds, 1))

    def document(self) -> dict[str, Any]:
        return {
            "faults": self.kinds.total(),
            "kinds": len(self.kinds),
            "by_kind": dict(sorted(self.kinds.items())),
            "recovery_s": dict(sorted(self.recoveries.items())),
            "findings": self.findings,
            "clean": not self.findings,
        }


def chaos(folder: Path, seed: int, seconds: float, kinds: Mapping[str, Kind] = KINDS, gap_s: tuple[float, float] = GAP_S) -> dict[str, Any]:
    """Do faults for so long; return the counts of both judges, what was done, and what was found."""
    chance, done, counts = Random(seed), Done(), dict[str, Any]()
    with _field(folder, chance, seed) as (field, spectator):
        try:
            _recovered(field, spectator)
            _faults(field, spectator, done, seconds, kinds, gap_s)
            field.heal()
            _recovered(field, spectator)
            counts = _verdict(field, spectator, done)
        except AssertionError as error:  # what was waited for did not come: there is no verdict, but a report
            done.findings.append(str(error)[:500])
    done.findings += field.keeper.findings
    codes = {str(code): count for code, count in sorted(field.keeper.codes.items())}
    return {"seed": seed, "seconds": round(seconds), **counts, "looks": spectator.looks, "exit_codes": codes, **done.document()}


def _faults(field: Field, spectator: Spectator, done: Done, seconds: float, kinds: Mapping[str, Kind], gap_s: tuple[float, float]) -> None:
    """One after the other, most of them before the recovery from the last has ended."""
    end, bag = time.monotonic() + seconds, list[str]()
    while time.monotonic() < end:
        bag = bag or field.chance.sample([*kinds], len(kinds))
        due, name = time.monotonic() + field.chance.uniform(*gap_s), bag.pop()
        print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
        try:
            kinds[name].do(field)
        except Exception as error:  # noqa: BLE001 - it is found, and the others go on
            done.findings.append(f"{name}: {type(error).__name__}: {error}"[:500])
            field.heal()
        done.kinds[name] += 1
        if done.kinds.total() % WHOLE_AFTER == 0:
            done.recovered(name, _recovered(field, spectator))
        field.keeper.spend(max(0.0, due - time.monotonic()))


def _recovered(field: Field, spectator: Spectator) -> float:
    """Wait until one instance streams and new events are visible; return after how many seconds."""
    began, seen = time.monotonic(), spectator.seen
    field.keeper.wait(lambda: field.keeper.streams() and spectator.seen > seen, RECOVERY_S, "events flow again")
    return time.monotonic() - began


def _verdict(field: Field, spectator: Spectator, done: Done) -> dict[str, Any]:
    """End the load, let everything be published and confirmed, and judge; return the counts."""
    pipeline, looks = field.pipeline, spectator.looks
    field.storm.stop()
    end = pipeline.lsn()
    field.keeper.wait(lambda: pipeline.slot().confirmed >= end, DRAIN_S, "all is published and confirmed")
    field.keeper.wait(lambda: spectator.looks > looks, 60, "the spectator sees the end")
    verdict = judged(pipeline, field.storm.ledger)
    answer = pipeline.command("verify", "--json", "--timeout", str(DRAIN_S), timeout_s=2 * DRAIN_S)
    verified = json.loads(answer.out.splitlines()[-1])
    field.keeper.stop()
    done.findings += [f"{each.kind}: {each.what}" for each in (*verdict.findings, *spectator.watch.verdict.findings)]
    if not clean(verdict) or not spectator.watch.verdict.clean:
        done.findings.append("the judge found something")
    if answer.code != 0 or verified != verdict.document():
        done.findings.append(f"verify says {verified} with {answer.code}, the judge {verdict.document()}")
    if CANARY in pipeline.log:
        done.findings.append("a log tells a payload")
    return {**{name: max(value, verified[name]) for name, value in verdict.document().items()}, "transactions": field.storm.transactions}


@contextmanager
def _field(folder: Path, chance: Random, seed: int) -> Iterator[tuple[Field, Spectator]]:
    """Start servers, ways, instances and load."""
    with ExitStack() as stack:
        postgres = stack.enter_context(PostgresServer(version=POSTGRES_VERSION))
        to_postgres = stack.enter_context(Proxy(postgres.port))
        kafka, to_kafka = stack.enter_context(proxied_kafka({"broker.session.timeout.ms": str(SESSION_MS)}))
        _role(postgres)
        pipeline = stack.enter_context(Pipeline(folder, "chaos", postgres.dsn("chaos"), kafka.bootstrap_servers))
        own = make_conninfo(pipeline.dsn, user=ROLE, password=PASSWORD, host=LOOPBACK, port=str(to_postgres.port))
        pipeline.set(postgres__dsn=own, postgres__admin_dsn=pipeline.dsn)
        pipeline.settings["kafka.bootstrap.servers"] = f"{LOOPBACK}:{to_kafka.port}"
        pipeline.init()
        storm = stack.enter_context(Storm(pipeline.dsn, seed, writers=4, pause_s=0.2))
        spectator = stack.enter_context(Spectator(pipeline))
        keeper = stack.enter_context(Keeper(pipeline, chance))
        yield Field(pipeline, keeper, storm, chance, postgres, kafka, to_postgres, to_kafka, ROLE), spectator


def _role(postgres: PostgresServer) -> None:
    """Make a database, and a role that has to give its password, as the pipeline's does."""
    hba = postgres.data / "pg_hba.conf"
    lines = "".join(f"host {database} {ROLE} {LOOPBACK}/32 scram-sha-256\n" for database in ("all", "replication"))
    hba.write_text(lines + hba.read_text())
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute("SELECT pg_reload_conf()")
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN REPLICATION PASSWORD {}").format(sql.Identifier(ROLE), PASSWORD))
        admin.execute("CREATE DATABASE chaos")
