"""The doctor: every precondition in PostgreSQL, Kafka and the schema folder, each a Finding with its fix.

Strategy: a list of questions, each a generator of findings that looks and never changes anything: no fence, no slot taken,
no topic made. A question that cannot be answered because its server refuses or is away is a finding like any other, and the
next question is asked all the same.

Rules.
- The server is looked at before the position and once more after it: the slot of a running pipeline moves on meanwhile, and
  so does the end of the log. The older slot and the newer log are what the position has to fit between.
- A position that an open Kafka transaction may hide is no proof that anything is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cdc.audit import check_postgres
from cdc.audit.finding import Case, Doctor, Finding, Patience, Status, Told, asked, failed, ok, warning
from cdc.audit.init import IDENTIFY_TIMEOUT_S
from cdc.avro import folder
from cdc.errors import CdcError, ContinuityError
from cdc.outbox.publication import RECREATE
from cdc.pipeline import continuity
from cdc.postgres.catalog import LiveCatalog
from cdc.postgres.link import PqLink
from cdc.postgres.server import Server


def examine(case: Case, doctor: Doctor, patience: Patience) -> list[Finding]:
    """Ask everything; the findings stand in the order of an operator's questions."""
    catalog = LiveCatalog(case.dsn, case.application_name)
    try:
        return list(_examination(case, catalog, doctor, patience))
    finally:
        catalog.close()


def _examination(case: Case, catalog: LiveCatalog, doctor: Doctor, patience: Patience) -> Iterator[Finding]:
    yield from asked("schemas", "folder", _schemas(case))
    server = list(asked("postgres", "reachable", check_postgres.reached(catalog, patience)))
    yield from server
    server_answers = server[-1].status is not Status.FAILED
    questions = check_postgres.QUESTIONS.items() if server_answers else ()
    found = [each for check, question in questions for each in asked("postgres", check, question(case, catalog))]
    sink = list(asked(doctor.area, "reachable", doctor.reached(patience)))
    if sink[-1].status is not Status.FAILED:
        found = _begun(found, doctor)
    yield from (*found, *sink)
    if sink[-1].status is not Status.FAILED:
        for check, ask in doctor.questions.items():
            yield from asked(doctor.area, check, ask(case))
        if server_answers:
            yield from asked("continuity", "position and slot", _continuity(case, catalog, doctor))


def _begun(found: list[Finding], doctor: Doctor) -> list[Finding]:
    """Say what alone mends a missing slot or publication where a position tells that the pipeline had one: init would refuse."""
    if not any(each.fix.endswith(tuple(_RECOVER)) for each in found):
        return found
    try:
        position, _ = doctor.sink.peek()
    except CdcError:
        return found  # a finding of its own, below
    if position is None or position.pending is not None:
        return found
    mended = ((each, next((fix for words, fix in _RECOVER.items() if each.fix.endswith(words)), each.fix)) for each in found)
    return [replace(each, fix=fix) for each, fix in mended]


_RECOVER = {
    check_postgres.INIT_OR_RECOVER: "`cdc recover` makes it again and publishes the rows that are lacking",
    RECREATE: "`cdc recover` replaces it and publishes the rows that are lacking",
}
"""Words that leave open whether there is a position -> what is left of them when there is one."""


def _schemas(case: Case) -> Told:
    contents = folder.scan(case.schemas)
    for file in contents.unlocked:
        yield failed(f"{file.source}: {file} is not in registry.lock", "run `cdc schemas add --all` and commit the lock")
    registry = folder.registry(contents)
    versions = list(registry.versions)
    broken = 0
    for version in versions:
        try:
            registry.encoder(version.subject, version.number)
        except CdcError as error:
            broken += 1
            yield failed(f"{version} cannot be compiled: {error.what}", error.fix or "mend it with a new version")
    if not versions and not contents.unlocked:
        yield warning(f"{case.schemas} holds no locked version: every row would be invalid", "add a schema, then `cdc schemas add --all`")
    elif versions and not broken and not contents.unlocked:
        yield ok(f"{len(versions)} versions of {len(registry.subjects)} subjects are locked and compile")


def _continuity(case: Case, catalog: LiveCatalog, doctor: Doctor) -> Told:
    before = look(case, catalog)
    try:
        position, cluster = doctor.sink.peek()
        hidden = doctor.hides()
    except CdcError as error:
        yield failed(f"the position cannot be read: {error.what}", error.fix or f"see what was found of {doctor.area}")
        return
    server = replace(look(case, catalog), slot=before.slot)
    try:
        proved = continuity.prove(continuity.Evidence(case.pipeline, case.slot, server, cluster, position))
    except ContinuityError as error:
        if not hidden:
            raise
        yield warning(f"a Kafka transaction is open on the position topic, and may hide a newer position: {error.what}", "check again")
        return
    behind = max(0, server.flush_lsn - proved.end_lsn)
    yield ok(f"the log goes on at {proved.end_lsn}, {behind:,} bytes before its end")
    if proved.hold is not None:
        yield warning(f"a command holds the pipeline: {proved.hold}", "let it end; if it was interrupted, run it again")


def look(case: Case, catalog: LiveCatalog) -> Server:
    """See the server, the slot and the publication, without taking anything."""
    link = PqLink(case.dsn, case.application_name, IDENTIFY_TIMEOUT_S)
    try:
        system_id, history, _ = link.identify()
        return catalog.server(case.slot, case.publication, system_id, history, link.backend_pid)
    finally:
        link.close()
