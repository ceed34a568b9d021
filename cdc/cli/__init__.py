"""The command line: a table of commands, each in its own file and loaded only when it is called.

Strategy: `cdc --help` and shell completion answer from the table; a command's module, and with it the clients of PostgreSQL
and Kafka, is imported when its name was typed. `main` is the one place where an error becomes a line on stderr and an exit
code: commands raise.

A command is a function, or a Typer for a group of commands. It returns None or its exit code.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from cdc.errors import CdcError, ConfigurationError

EXIT_BUG = 1
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""As a shell reports a process that SIGINT or SIGPIPE ended."""

MARKUP: Literal["rich"] | None = "rich" if sys.stdout.isatty() else None
"""Help with frames and colours is for a terminal: it takes three times as long to load."""

CONTEXT = {"help_option_names": ["-h", "--help"]}


@dataclass(frozen=True, slots=True)
class Command:
    """Where a command is (module, and function or Typer in it), and what `cdc --help` says about it.

    `extra` is the optional dependency of the package that it needs.
    """

    module: str
    attribute: str
    help: str
    examples: tuple[str, ...]
    panel: str = "Pipeline"
    extra: str = ""


COMMANDS = {
    "demo": Command(
        "cdc.cli.demo",
        "demo",
        "See it work: real servers, a small shop, the pipeline killed in the middle, an audit at the end.",
        ("cdc demo --orders 20000", "cdc demo --keep --json", "cdc demo --seconds 60 --rate 500 --kill-consumers 5"),
        "Try it",
        "servers",
    ),
    "dev": Command(
        "cdc.cli.dev",
        "app",
        "Start and stop a PostgreSQL and a Kafka for development.",
        ("cdc dev up --json",),
        "Try it",
        "servers",
    ),
    "init": Command(
        "cdc.cli.init",
        "init",
        "Create what the pipeline needs: publication, slot, topics, genesis position.",
        ("cdc init --create-table", "cdc init --existing skip --sql"),
    ),
    "import-debezium": Command(
        "cdc.cli.import_debezium",
        "import_debezium",
        "Make a cdc.toml of a Debezium connector with the outbox event router, and list what it cannot carry over.",
        ("cdc import-debezium connector.json", "cdc import-debezium connector.json --output - --json"),
    ),
    "check": Command(
        "cdc.cli.check",
        "check",
        "The doctor: every precondition in PostgreSQL, Kafka and the schema folder, each with its fix.",
        ("cdc check", "cdc check --json"),
    ),
    "run": Command(
        "cdc.cli.run",
        "run",
        "Run the pipeline, until SIGTERM.",
        ("cdc run --config cdc.toml", "cdc run --set postgres.slot=cdc_shop --log-format json"),
    ),
    "status": Command(
        "cdc.cli.status",
        "status",
        "Positions, lag, the health of the slot and the last errors.",
        ("cdc status", "cdc status --json"),
    ),
    "verify": Command(
        "cdc.cli.verify",
        "verify",
        "Compare the outbox rows with the committed records.",
        ("cdc verify --json", "cdc verify --since 2026-01-01T00:00:00Z"),
    ),
    "recover": Command(
        "cdc.cli.recover",
        "recover",
        "After a lost slot: a new one, and the rows that Kafka lacks; after a fork of the log: back to it.",
        ("cdc recover", "cdc recover --adopt --since 2026-01-31T00:00:00Z --yes"),
        "Repair",
    ),
    "slot": Command(
        "cdc.cli.slot",
        "app",
        "Bookmarks in the log: keep a place, go back to it, list, drop.",
        ("cdc slot bookmark before_release", "cdc slot rewind before_release"),
        "Repair",
    ),
    "replay": Command(
        "cdc.cli.replay",
        "replay",
        "Publish chosen rows of the table again, marked as a replay.",
        ("cdc replay --key order-17", "cdc replay --since 2026-01-31T00:00:00Z --to-topic shop.again --dry-run"),
        "Repair",
    ),
    "offsets": Command(
        "cdc.cli.offsets",
        "app",
        "Move a consumer group to the beginning, a time or an event.",
        ("cdc offsets reset --group billing --to-time 2026-01-31T12:00:00Z",),
        "Repair",
    ),
    "tail": Command(
        "cdc.cli.tail",
        "tail",
        "Show decoded events as they are committed; personal fields are masked.",
        ("cdc tail", "cdc tail outbox.event.order --from-beginning --json"),
    ),
    "dead-letters": Command(
        "cdc.cli.dead_letters",
        "app",
        "Parked events: list, show, redrive, and park a row that stops the pipeline.",
        ("cdc dead-letters list", "cdc dead-letters redrive --reason schema"),
    ),
    "schemas": Command(
        "cdc.cli.schemas",
        "app",
        "The schema folder as a registry: add, check, list, show, diff, serve, push, docs.",
        ("cdc schemas add --all", "cdc schemas check"),
        "Schemas",
    ),
    "try": Command(
        "cdc.cli.try_",
        "try_",
        "Show the record that a payload would become, or why it cannot.",
        ("cdc try order.json --type OrderPlaced",),
        "Schemas",
    ),
}


class LazyGroup(TyperGroup):
    """The commands of COMMANDS: listed from the table, loaded when called."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - Typer's context is private
        """Every command, in the order of the table."""
        return [name for name, command in COMMANDS.items() if importlib.util.find_spec(command.module)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - as above
        """Return the command, or only its name and help while the table is being shown."""
        command = COMMANDS.get(cmd_name)
        if command is None or cmd_name not in self.list_commands(ctx):
            return None
        if self._listing:
            return TyperCommand(cmd_name, help=command.help, rich_help_panel=command.panel)
        return load_command(cmd_name, command)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - as above
        """Show the table."""
        self._listing = True
        super().format_help(ctx, formatter)
        self._listing = False

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:  # noqa: ANN401 - as above
        """Complete a command's name from the table."""
        self._listing = True
        completions = super().shell_complete(ctx, incomplete)
        self._listing = False
        return completions


def load_command(name: str, command: Command) -> Any:  # noqa: ANN401 - Typer's command class is private
    """Import a command's module and make a command of what it holds."""
    try:
        target = getattr(importlib.import_module(command.module), command.attribute)
    except ModuleNotFoundError as error:
        if not command.extra or (error.name or "").partition(".")[0] == "cdc":
            raise
        msg = f"cdc {name} needs the package {error.name}, which is not installed"
        raise ConfigurationError(msg, f"install the extra: pip install 'cdc[{command.extra}]'") from None
    if not gc.isenabled():  # see main
        gc.freeze()
        gc.enable()
    epilog = "\n\n".join(("Examples:", *(f"  {example}" for example in command.examples)))
    if not isinstance(target, typer.Typer):
        single = typer.Typer(add_completion=False, context_settings=CONTEXT, rich_markup_mode=MARKUP)
        single.command(name, epilog=epilog)(target)
        return get_command(single)
    target._add_completion = False  # noqa: SLF001 - the outermost group offers it already
    target.rich_markup_mode = MARKUP
    target.info.context_settings = CONTEXT
    loaded = get_command(target)
    loaded.name = name
    loaded.help = loaded.help or command.help
    loaded.epilog = loaded.epilog or epilog
    return loaded


def _version(*, shown: bool) -> None:
    if shown:
        from cdc.cli.version import lines  # noqa: PLC0415 - loads the clients

        sys.stdout.write("\n".join((*lines(), "")))
        raise typer.Exit


app = typer.Typer(
    name="cdc",
    cls=LazyGroup,
    context_settings=CONTEXT,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    rich_markup_mode=MARKUP,
)


@app.callback(
    epilog="Examples:\n\n  cdc demo --orders 20000\n\n  cdc run --config cdc.toml\n\n"
    "Exit codes: 0 stopped cleanly, 1 a bug, 2 configuration, 3 PostgreSQL refuses, 4 continuity cannot be proved, "
    "5 Kafka refuses, 6 identity taken, 7 stopped by policy, 8 an audit or check found something."
)
def cdc(
    ctx: typer.Context,
    *,
    version: Annotated[  # noqa: ARG001 - its callback does it
        bool,
        typer.Option("--version", callback=lambda value: _version(shown=value), is_eager=True, help="Show the versions and exit."),
    ] = False,
) -> None:
    """From a PostgreSQL outbox table to Kafka, each committed row exactly once."""
    if ctx.invoked_subcommand is None:
        sys.stdout.write(_ended(ctx.get_help()))


def main(arguments: Sequence[str] | None = None) -> int:  # noqa: PLR0911 - one for each way to end
    """Run a command, by default the one that this process was started for; return the exit code."""
    if arguments is None:
        gc.disable()  # until the command is loaded: what modules make stays, and looking for garbage in it takes a sixth of the time
    try:
        code = get_command(app).main(args=arguments, prog_name="cdc", standalone_mode=False)
        sys.stdout.flush()
    except CdcError as error:
        from cdc.cli.output import error_line  # noqa: PLC0415 - only when it is needed

        sys.stderr.write(error_line(error) + "\n")
        return error.exit_code
    except typer.TyperException as error:
        return _usage(error)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _pipe_closed()
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # Typer caught it and made it exit code 1
            return _pipe_closed()
        raise
    except Exception as error:  # noqa: BLE001 - the last one who can tell
        from cdc.observe import logs  # noqa: PLC0415 - only when it is needed

        logs.crashed(error)
        sys.stderr.write(f"cdc: a bug: {type(error).__name__}. Fix: starting again is safe; please report it with the log's last lines\n")
        return EXIT_BUG
    return code if isinstance(code, int) else 0


def _ended(help_text: str) -> str:
    """End a text with a line end; help with frames has been printed while it was made, and there is no text."""
    return help_text + "\n" if help_text else ""


def _pipe_closed() -> int:
    """Nobody reads on, as in `cdc status | head -1`. Python flushes stdout once more at exit and would complain there."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
    return EXIT_BROKEN_PIPE


def _usage(error: typer.TyperException) -> int:
    """Say in one line as well why a command cannot be understood; a group without a command asks for its help."""
    if not error.message or "\n" in error.message:
        sys.stderr.write(_ended(error.message))
        return error.exit_code
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "cdc"
    sys.stderr.write(f"cdc: {error.format_message().rstrip('.')}. Fix: see {command} --help\n")
    return error.exit_code
