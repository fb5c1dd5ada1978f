"""The `cometmq` program: every daemon and tool is a subcommand of it.

It is also installed with the bare SDK, where the packages that its subcommands need are missing; it
then says what to install instead of failing with a traceback.
"""

from __future__ import annotations

import importlib.util
import sys

from cometmq.admin.closed_streams import hold_closed_streams
from cometmq.admin.interrupts import interrupts_told
from cometmq.admin.whole_output import whole_output

NEEDED = ("click", "rich")


def main() -> None:
    """Run the command line; exit status 0 is success, 1 failure, 2 wrong usage or config."""
    hold_closed_streams()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"cometmq: the command line needs {' and '.join(missing)}, which the bare SDK leaves "
            "out.\nInstall it with:  pip install 'cometmq[broker]'",
            file=sys.stderr,
        )
        raise SystemExit(1)
    with interrupts_told(), whole_output():
        from cometmq.admin.program import program

        program(prog_name="cometmq")


if __name__ == "__main__":
    main()
