"""The tree of subcommands."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from typing import Any, Final

import click

from cometmq.admin.interrupts import interrupts_told

_ELSEWHERE: Final = {
    "bench": "cometmq.admin.commands.bench",
    "broker": "cometmq.admin.commands.broker",
    "consume": "cometmq.admin.commands.consume",
    "dlq": "cometmq.admin.commands.dlq",
    "group": "cometmq.admin.commands.group",
    "message": "cometmq.admin.commands.message",
    "nameserver": "cometmq.admin.commands.nameserver",
    "offset": "cometmq.admin.commands.offset",
    "pipeline": "cometmq.pipeline.command",
    "send": "cometmq.admin.commands.send",
    "settings": "cometmq.admin.commands.settings",
    "store": "cometmq.admin.commands.store_commands",
    "tail": "cometmq.admin.commands.consume",
    "topic": "cometmq.admin.commands.topic",
    "transaction": "cometmq.admin.commands.transaction",
    "up": "cometmq.admin.commands.up",
}
"""The commands and their modules, which are imported on demand: numpy alone takes 0.1 s."""


class _Program(click.Group):
    """A command group that imports most commands only when they are run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *_ELSEWHERE})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name."""
        if cmd_name in _ELSEWHERE:
            try:
                command = getattr(import_module(_ELSEWHERE[cmd_name]), cmd_name)
            except ModuleNotFoundError as error:
                return _not_installed(cmd_name, _what_to_install(cmd_name, error))
            assert isinstance(command, click.Command)
            return command
        return super().get_command(ctx, cmd_name)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the command line; listing the commands imports them."""
        with interrupts_told():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; many import what they need only then."""
        try:
            with interrupts_told():
                return super().invoke(ctx)
        except ModuleNotFoundError as error:
            raise _what_to_install(ctx.invoked_subcommand or "", error) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command, or suggest one: Click cannot suggest commands not yet imported."""
        known = self.list_commands(ctx)
        close = [] if args[0] in known else get_close_matches(args[0], known, n=1)
        if close and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)


def _what_to_install(command: str, error: ModuleNotFoundError) -> click.ClickException:
    """Say which extra installs the missing module; re-raise if no package would."""
    module = (error.name or "cometmq").partition(".")[0]
    if module == "cometmq" or module in sys.stdlib_module_names:
        raise error
    extra = "spark" if command == "pipeline" else "broker"
    return click.ClickException(
        f"`cometmq {command}` needs {module}, which is not installed here."
        f"\nInstall it with:  pip install 'cometmq[{extra}]'"
    )


def _not_installed(name: str, problem: click.ClickException) -> click.Command:
    """Make a stand-in for a command that cannot be imported, so that the others still work."""

    def refuse(**_: object) -> None:
        raise problem

    return click.Command(
        name,
        callback=refuse,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True},
        add_help_option=False,
        short_help=problem.message.partition("\n")[2],
    )


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("cometmq"), prog_name="cometmq")
def program() -> None:
    """CometMQ: a message broker in Python that speaks Apache RocketMQ's protocol.

    \b
    cometmq up            a broker and a name server in one process, to try it
    cometmq broker        a broker daemon
    cometmq nameserver    a name server daemon

    Each command explains itself: cometmq broker --help.
    """
