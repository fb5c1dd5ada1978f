"""The tree of subcommands."""

from __future__ import annotations

from importlib.metadata import version

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("cometmq"), prog_name="cometmq")
def program() -> None:
    """CometMQ: a message broker in Python that speaks Apache RocketMQ's protocol.

    This is a young checkout: `up`, the daemons and the tools arrive one by one, and docs/roadmap.md
    says which are there.
    """


@program.command()
def up() -> None:
    """Name server, broker and metrics in one process (not built yet)."""
    raise click.ClickException(
        "`cometmq up` is not built yet: the broker and the name server are the next steps.\n"
        "What works today is in docs/roadmap.md; `make test` runs it."
    )
