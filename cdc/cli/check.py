"""`cdc check`: the doctor, for people and for scripts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from cdc import app
from cdc.audit.check import examine
from cdc.audit.finding import Case, Finding, Status
from cdc.cli.options import TIMEOUT_S, Config, Json, Sets, Timeout, settings_from
from cdc.cli.output import console, print_json, progress, table
from cdc.cli.patience import within
from cdc.errors import AuditFailed
from cdc.kafka.properties import TRANSACTION_TIMEOUT_MS, number
from cdc.settings import Settings, mask

Answer = TypeVar("Answer")


def check(config: Config = None, sets: Sets = None, timeout_s: Timeout = TIMEOUT_S, as_json: Json = False) -> None:
    """Look at every precondition in PostgreSQL, Kafka and the schema folder; changes nothing."""
    settings = settings_from(config, sets)
    doctor = app.doctor(settings)

    def patience(attempt: Callable[[], Answer]) -> Answer:
        return within(timeout_s, attempt)

    try:
        with progress("checking both ends"):
            findings = [masked(finding) for finding in examine(case(settings), doctor, patience)]
    finally:
        doctor.sink.close()
    failed = [finding for finding in findings if finding.status is Status.FAILED]
    if as_json:
        print_json({"ok": not failed, "findings": [dataclasses.asdict(finding) for finding in findings], "settings": settings.effective()})
    else:
        show(settings, findings)
    if failed:
        msg = f"{len(failed)} of {len(findings)} checks failed, first {failed[0].area}, {failed[0].check}: {failed[0].what}"
        raise AuditFailed(msg, failed[0].fix)


def case(settings: Settings) -> Case:
    """Return what is examined."""
    return Case(
        pipeline=settings.name,
        slot=settings.postgres.slot,
        publication=settings.postgres.publication,
        table=app.table(settings),
        mapping=app.mapping(settings),
        dsn=app.dsn(settings),
        application_name=app.application_name(settings),
        schemas=Path(settings.schemas.folder),
        create=app.create(settings),
        static_topics=tuple(app.static_topics(settings)),
        emit=app.emit(settings),
        retention=settings.outbox.retention is not None,
        transaction_timeout_ms=number(settings.kafka, "transaction.timeout.ms", TRANSACTION_TIMEOUT_MS),
    )


def masked(finding: Finding) -> Finding:
    """Mask once more what a library's words may have brought in."""
    return dataclasses.replace(finding, what=mask(finding.what), fix=mask(finding.fix))


def show(settings: Settings, findings: Sequence[Finding]) -> None:
    """Print the settings that were not left at their defaults, then the findings, what is wrong last."""
    out = console()
    out.print(table(("setting", "value", "from"), _chosen(settings.effective()), title="Settings"))
    good = [(each.area, each.check, each.what) for each in findings if each.status is Status.OK]
    out.print(table(("area", "check", "ok"), good, title="Checks"))
    for status in (Status.WARNING, Status.FAILED):
        for each in findings:
            if each.status is status:
                out.print(f"{status}: {each.area}, {each.check}: {each.what}", style="yellow" if status is Status.WARNING else "bold red")
                out.print(f"  fix: {each.fix}")
    if all(each.status is Status.OK for each in findings):
        out.print(f"all {len(findings)} checks are well", style="green")


def _chosen(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, object, str]]:
    for key, leaf in tree.items():
        at = f"{path}{key}"
        if not isinstance(leaf, Mapping):
            continue
        if "origin" not in leaf:
            yield from _chosen(leaf, f"{at}.")
        elif leaf["origin"] != "default":
            yield at, leaf["value"], leaf["place"]
