"""The process that holds a port, as far as Linux tells, for the message that the port is in use.

`/proc/net/tcp` has a line for each socket::

    sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
     0: 0100007F:2694 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 77 1

The port is in hexadecimal, after the colon of the second field; the state 0A is listening. The
tenth field is the inode of the socket, to which a link in the file table of its process points.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

_LISTENING: Final = "0A"


def process_on(port: int, proc: Path = Path("/proc")) -> str | None:
    """Return which process listens on a port, `process 17 (cometmq up)`; None if it is unknown.

    The files of other users' processes are visible only to root.
    """
    inodes = _inodes(port, proc)
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in proc.glob("[0-9]*"):
        try:
            if any(str(link.readlink()) in wanted for link in (process / "fd").iterdir()):
                words = (process / "cmdline").read_bytes().split(b"\0")
                command = " ".join(word.decode(errors="replace") for word in words if word)
                return f"process {process.name} ({command[:80]})"
        except OSError:  # It has ended, or is another user's.
            continue
    return None


def _inodes(port: int, proc: Path) -> set[str]:
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found
