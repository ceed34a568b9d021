"""`cdc schemas`: the schema folder as a registry.

Every command reads the folder, decides in `cdc.avro`, and prints. What is wrong with the folder is an error with exit code 2.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from cdc.avro import folder
from cdc.avro.catalogue import asyncapi, page
from cdc.avro.changes import changes
from cdc.avro.codegen_models import module
from cdc.avro.compatibility import Incompatibility, unreadable
from cdc.avro.endpoint import application
from cdc.avro.examples import example
from cdc.avro.registry import Registry, Version
from cdc.avro.review import Candidate, Finding, notes, review
from cdc.avro.schema import Json as Json_
from cdc.cli.options import Config, Json, Sets, schemas_from
from cdc.cli.output import console, print_json, progress, say, table
from cdc.errors import AuditFailed, ConfigurationError, InvalidEvent
from cdc.settings import TOKEN_MIN_CHARS, is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp

app = typer.Typer(help="The schema folder as a registry.", no_args_is_help=True)

Folder = Annotated[Path | None, typer.Option("--folder", metavar="PATH", help="The schema folder; else schemas.folder of the settings.")]


def path_from(folder_: Path | None, config: Path | None, sets: list[str] | None) -> Path:
    """Return the folder that a command works on."""
    return folder_ or Path(schemas_from(config, sets).folder)


@app.command(epilog="Examples:\n\n  cdc schemas add --all\n\n  cdc schemas add OrderPlaced/2")
def add(
    *,
    versions: Annotated[list[str] | None, typer.Argument(metavar="[SUBJECT/VERSION]...", help="Versions to lock.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Lock every version that is not locked yet.")] = False,
    folder_: Folder = None,
    config: Config = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Check new versions against their predecessors and give each its id, in registry.lock."""
    path = path_from(folder_, config, sets)
    contents = folder.scan(path)
    chosen = _chosen(contents, versions or [], every=every)
    warnings = _judge(contents, chosen)
    told = [str(note) for file in chosen for note in notes(file, contents.files[file.subject][: file.number - 1])]
    for note in told:
        say(f"note: {note}")
    lock = contents.lock.added((file.subject, file.number, file.fingerprint) for file in chosen)
    if chosen:
        folder.write_lock(path, lock)
    added = [{"subject": e.subject, "version": e.version, "id": e.id} for e in lock.entries[len(contents.lock.entries) :]]
    if as_json:
        print_json({"added": added, "warnings": warnings, "notes": told})
        return
    listed = table(("id", "version"), [(a["id"], f"{a['subject']}/{a['version']}") for a in added])
    console().print(listed if added else "nothing to add: every version is locked")


@app.command(epilog="Example, for CI and as a pre-commit hook:\n\n  cdc schemas check")
def check(
    *,
    folder_: Folder = None,
    config: Config = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Check the whole folder: files, names, types, locks, and compatibility; exit 2 at the first thing that is wrong."""
    path = path_from(folder_, config, sets)
    contents = folder.scan(path)
    newest = [file for files in contents.files.values() for file in files if file in contents.unlocked or file is files[-1]]
    warnings = _judge(contents, newest)
    folder.load(path)
    versions = sum(len(files) for files in contents.files.values())
    if as_json:
        print_json({"subjects": len(contents.files), "versions": versions, "warnings": warnings})
    else:
        console().print(f"{path}: {len(contents.files)} subjects, {versions} versions, all locked and compatible")


@app.command("list", epilog="Example:\n\n  cdc schemas list --json")
def list_(
    *,
    folder_: Folder = None,
    config: Config = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Show every version with its id, and what registry.toml says of its subject."""
    registry = folder.load(path_from(folder_, config, sets))
    rows = [_listed(registry, version) for version in registry.versions]
    if as_json:
        print_json({"versions": rows})
        return
    shown = [
        (r["id"], f"{r['subject']}/{r['version']}", r["compatibility"], r["owner"], r["topic"], "pinned" if r["pinned"] else "")
        for r in rows
    ]
    console().print(table(("id", "version", "compatibility", "owner", "topic", ""), shown))


@app.command(epilog="Examples:\n\n  cdc schemas show OrderPlaced\n\n  cdc schemas show OrderPlaced/1 --encoder")
def show(
    *,
    name: Annotated[str, typer.Argument(metavar="SUBJECT[/VERSION]", help="The newest version if none is named.")],
    encoder: Annotated[bool, typer.Option("--encoder", help="Print the Python that encodes this version.")] = False,
    folder_: Folder = None,
    config: Config = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Show one version: the schema with its shared types written out, or the encoder that is compiled from it."""
    registry = folder.load(path_from(folder_, config, sets))
    version = _named(registry, name)
    source = registry.encoder(version.subject, version.number).source if encoder else None
    if as_json:
        extra: dict[str, Any] = {"schema": version.schema.document, "guid": str(version.guid), "fingerprint": version.fingerprint}
        print_json({**_listed(registry, version), **extra, **({} if source is None else {"encoder": source})})
    elif source is not None:
        console().print(source.rstrip())
    else:
        console().print(_pretty(version.schema.document))


@app.command(epilog="Example:\n\n  cdc schemas diff OrderPlaced/1 OrderPlaced/2")
def diff(
    *,
    old: Annotated[str, typer.Argument(metavar="SUBJECT/VERSION")],
    new: Annotated[str, typer.Argument(metavar="SUBJECT[/VERSION]")],
    folder_: Folder = None,
    config: Config = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Show what differs between two versions, and what that means for readers and for writers."""
    files = folder.scan(path_from(folder_, config, sets)).files
    before, after = _file(files, old), _file(files, new)
    words = changes(before.schema, after.schema)
    readers = unreadable(before.schema, after.schema)
    writers = unreadable(after.schema, before.schema)
    if as_json:
        print_json(
            {
                "from": str(before),
                "to": str(after),
                "changes": words,
                "readers": [_problem(before, after, problem) for problem in readers],
                "writers": [_problem(after, before, problem) for problem in writers],
            }
        )
        return
    out = console()
    out.print(f"{before} -> {after}")
    for word in words or ["nothing that counts differs"]:
        out.print(f"  {word}")
    out.print(f"readers that still have {before}: " + _verdict(readers, f"read what {after} writes"))
    out.print(f"writers that still have {before}: " + _verdict(writers, f"are read by {after}"))


@app.command(epilog="Example:\n\n  cdc schemas serve --listen 127.0.0.1:8081")
def serve(
    *,
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Port 0 takes a free one.")] = "127.0.0.1:8081",
    token_file: Annotated[Path | None, typer.Option(help="A file with the token that callers need; for other than loopback.")] = None,
    folder_: Folder = None,
    config: Config = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Serve the folder as a read-only Confluent registry, at / and at /registry, until SIGTERM or Ctrl-C."""
    from cdc.observe.guard import Guard  # noqa: PLC0415 - only here
    from cdc.observe.http import HttpServer  # noqa: PLC0415 - loads the logs

    registry = folder.load(path_from(folder_, config, sets))
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > MAX_PORT:
        raise ConfigurationError("--listen is not HOST:PORT", "write it as 127.0.0.1:8081")
    token = _token(token_file, host.strip("[]"))
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before the server's thread starts, so that it never takes one
    state = {"registry": registry}

    def answers() -> ASGIApp:
        served = application(lambda: state["registry"], "/registry")
        return Guard(served, token, ()) if token else served

    server = HttpServer(host.strip("[]"), int(port), answers)
    server.start()
    url = f"http://{host}:{server.port}"
    if as_json:
        print_json({"url": url})
    else:
        console().print(f"{registry!r} at {url}")
    try:
        while (received := signal.sigtimedwait(signals, RELOAD_EVERY_S)) is None or received.si_signo == signal.SIGHUP:
            state["registry"] = _reloaded(state["registry"])
    finally:
        server.stop()


def _token(path: Path | None, host: str) -> str:
    """Return the token in a file, or nothing for a loopback address without one."""
    if path is None:
        if is_loopback(host):
            return ""
        msg = f"--listen {host} is reached by others, and there is no token"
        raise ConfigurationError(msg, "name a file with one by --token-file, or listen on 127.0.0.1")
    try:
        token = path.read_text().strip()
    except OSError as error:
        msg = f"--token-file {path} cannot be read: {error.strerror}"
        raise ConfigurationError(msg, "name a readable file") from None
    if len(token) < TOKEN_MIN_CHARS:
        msg = f"--token-file {path} holds fewer than {TOKEN_MIN_CHARS} characters"
        raise ConfigurationError(msg, "make one with: openssl rand -hex 24")
    return token


@app.command(epilog="Example:\n\n  cdc schemas push http://registry:8081")
def push(
    *,
    url: Annotated[str, typer.Argument(metavar="URL", help="A user and a password may stand in it.")],
    folder_: Folder = None,
    config: Config = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Copy every version to an external Confluent registry, with its id."""
    from cdc.avro.push import push as copy  # noqa: PLC0415 - loads the HTTP client

    with progress("copying versions"):
        pushed = copy(folder.load(path_from(folder_, config, sets)), url)
    if as_json:
        print_json({"copied": pushed.copied, "present": pushed.present})
    else:
        console().print(f"copied {len(pushed.copied)} versions, {len(pushed.present)} were there already")


@app.command(epilog="Examples:\n\n  cdc schemas docs > events.md\n\n  cdc schemas docs --asyncapi > asyncapi.json")
def docs(
    *,
    as_asyncapi: Annotated[bool, typer.Option("--asyncapi", help="Print an AsyncAPI 3.0 document.")] = False,
    title: Annotated[str, typer.Option("--title", metavar="TEXT")] = "Events",
    folder_: Folder = None,
    config: Config = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Print the catalogue of all events, as a page or as AsyncAPI."""
    registry = folder.load(path_from(folder_, config, sets))
    if as_json:
        print_json(asyncapi(registry, title))
    elif as_asyncapi:
        console().print(_pretty(asyncapi(registry, title)))
    else:
        console().print(page(registry, title).rstrip())


@app.command(epilog="Examples:\n\n  cdc schemas codegen --out shop/events.py\n\n  cdc schemas codegen --out shop/events.py --check")
def codegen(
    *,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the module there; else it is printed.")] = None,
    check_: Annotated[bool, typer.Option("--check", help="Write nothing; exit 8 if FILE is not what would be written. For CI.")] = False,
    folder_: Folder = None,
    config: Config = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Write the events as Python classes (pydantic), for `append(cursor, OrderPlaced(..))` and for consumers."""
    if check_ and out is None:
        raise ConfigurationError("--check compares a file, and none is named", "name it by --out")
    text = module(folder.load(path_from(folder_, config, sets)))
    changed = out is not None and not (out.exists() and out.read_text(encoding="utf-8") == text)
    if check_ and changed:
        raise AuditFailed(f"{out} is not what the schema folder says", f"run `cdc schemas codegen --out {out}` and commit it")
    if out is None and not as_json:
        print(text, end="")
    elif out is not None and changed:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"--out {out} cannot be written: {error.strerror}", "name a file in a folder that exists") from None
    if as_json:
        print_json({"file": str(out or ""), "changed": changed, **({} if out else {"text": text})})
    elif out is not None:
        console().print(f"{out}: {'written' if changed else 'nothing to change'}")


MAX_PORT = 65535

RELOAD_EVERY_S = 2.0
"""Seconds between two looks at the folder; reading one of a hundred files takes some milliseconds."""


def _reloaded(registry: Registry) -> Registry:
    """Take up added versions; a folder that is broken for the moment leaves what is served as it is."""
    try:
        return folder.refreshed(registry)
    except ConfigurationError as error:
        say(f"warning: still serving what was read before: {error}")
        return registry


def _named(registry: Registry, name: str) -> Version:
    subject, _, number = name.partition("/")
    try:
        return registry.version(subject, int(number)) if number.isdecimal() else registry.latest(subject if not number else name)
    except InvalidEvent as error:
        raise ConfigurationError(error.what, "see `cdc schemas list`") from None


def _file(files: Mapping[str, tuple[Candidate, ...]], name: str) -> Candidate:
    """Find a version that need not be locked yet; the newest if none is named."""
    subject, _, number = name.partition("/")
    have = files.get(subject, ())
    wanted = number or str(len(have))
    for file in have:
        if str(file.number) == wanted:
            return file
    raise ConfigurationError(f"there is no version {name}", "see `cdc schemas list`")


def _listed(registry: Registry, version: Version) -> dict[str, Any]:
    settings = registry.settings_of(version.subject)
    return {
        "id": version.id,
        "subject": version.subject,
        "version": version.number,
        "compatibility": settings.compatibility,
        "owner": settings.owner,
        "topic": settings.topic,
        "pinned": settings.pinned == version.number,
    }


def _problem(reader: Candidate, writer: Candidate, problem: Incompatibility) -> dict[str, Any]:
    return {"reader": str(reader), "path": problem.path, "reason": problem.reason, "example": example(writer.schema, problem.steps)}


def _verdict(problems: list[Incompatibility], good: str) -> str:
    return good if not problems else "".join(f"\n  {problem}" for problem in problems)


def _pretty(document: Json_) -> str:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _chosen(contents: folder.Contents, names: list[str], *, every: bool) -> list[Candidate]:
    """Return the versions to lock, in the order in which they get their ids."""
    if every == bool(names):
        what = "name the versions to lock, or give --all" if not every else "give either names or --all"
        raise ConfigurationError(f"cdc schemas add: {what}")
    unlocked = {str(file): file for file in contents.unlocked}
    if every:
        return list(unlocked.values())
    known = {str(file) for files in contents.files.values() for file in files}
    for name in names:
        if name not in known:
            raise ConfigurationError(f"{contents.folder}: there is no version {name}", "write it as OrderPlaced/2")
    chosen = [unlocked[name] for name in names if name in unlocked]
    for file in chosen:
        for number in range(1, file.number):
            earlier = f"{file.subject}/{number}"
            if earlier in unlocked and earlier not in names:
                raise ConfigurationError(f"{file.source}: {earlier} is not locked yet", f"add {earlier} first, or give --all")
    return sorted(chosen, key=lambda file: (file.subject, file.number))


def _judge(contents: folder.Contents, chosen: list[Candidate]) -> list[str]:
    """Refuse what may not be locked; say what is worth a warning."""
    refused: list[Finding] = []
    warnings: list[str] = []
    for file in chosen:
        earlier = contents.files[file.subject][: file.number - 1]
        bad, doubtful = review(file, earlier, contents.settings[file.subject].compatibility)
        refused += bad
        warnings += [str(finding) for finding in doubtful]
    for warning in warnings:
        say(f"warning: {warning}")
    if refused:
        for finding in refused[1:]:
            say(str(finding))
        more = f" (and {len(refused) - 1} more, above)" if len(refused) > 1 else ""
        fix = "change the new version so that it fits, or the subject's compatibility in registry.toml; an earlier mistake: docs/schemas.md"
        raise ConfigurationError(f"{refused[0]}{more}", fix)
    return warnings
