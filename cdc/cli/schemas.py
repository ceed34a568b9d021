"""`cdc schemas`: the schema folder as a registry.

Every command reads the folder, decides in `cdc.avro`, and prints. What is wrong with the folder is an error with exit code 2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cdc.avro import folder
from cdc.avro.review import Candidate, Finding, review
from cdc.cli.options import Config, Json, Sets, schemas_from
from cdc.cli.output import console, print_json, say, table
from cdc.errors import ConfigurationError

app = typer.Typer(help="The schema folder as a registry.", no_args_is_help=True)

Folder = Annotated[Path | None, typer.Option("--folder", metavar="PATH", help="The schema folder; else schemas.folder of the settings.")]


def path_from(folder_: Path | None, config: Path | None, sets: list[str] | None) -> Path:
    """Return the folder that a command works on."""
    return folder_ or Path(schemas_from(config, sets).folder)


@app.command(epilog="Examples:\n\n  cdc schemas add --all\n\n  cdc schemas add OrderPlaced/2")
def add(
    versions: Annotated[list[str] | None, typer.Argument(metavar="[SUBJECT/VERSION]...", help="Versions to lock.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Lock every version that is not locked yet.")] = False,  # noqa: FBT002 - a flag
    folder_: Folder = None,
    config: Config = None,
    sets: Sets = None,
    as_json: Json = False,  # noqa: FBT002 - a flag
) -> None:
    """Check new versions against their predecessors and give each its id, in registry.lock."""
    path = path_from(folder_, config, sets)
    contents = folder.scan(path)
    chosen = _chosen(contents, versions or [], every=every)
    warnings = _judge(contents, chosen)
    lock = contents.lock.added((file.subject, file.number, file.fingerprint) for file in chosen)
    if chosen:
        folder.write_lock(path, lock)
    added = [{"subject": e.subject, "version": e.version, "id": e.id} for e in lock.entries[len(contents.lock.entries) :]]
    if as_json:
        print_json({"added": added, "warnings": warnings})
        return
    if added:
        console().print(table(("id", "version"), [(a["id"], f"{a['subject']}/{a['version']}") for a in added]))
    else:
        console().print("nothing to add: every version is locked")


@app.command(epilog="Example, for CI and as a pre-commit hook:\n\n  cdc schemas check")
def check(
    folder_: Folder = None,
    config: Config = None,
    sets: Sets = None,
    as_json: Json = False,  # noqa: FBT002 - a flag
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
        raise ConfigurationError(
            f"{refused[0]}{more}", "change the new version so that it fits, or the subject's compatibility in registry.toml"
        )
    return warnings
