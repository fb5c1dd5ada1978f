"""Memory that a virtual machine has, before something is measured that fills it.

A page that the machine has not used for a while may have gone back to its host, and the first write
to it then waits for the host: on the machine of docs/performance.md 2.7 s of CPU a GiB, where pages
that it has take 0.3. A broker writes into new pages for ever, so that such a machine, idle before
and idle after, measures its host. `had` gets pages from the host and leaves them free, as they are
on a machine that is in use, and on one whose memory is its own. It lasts for seconds: for each run
again, and the same for each of those that are compared.
"""

from __future__ import annotations

import subprocess
import sys

_TOUCHED = """
import mmap, sys
how = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
mmap.mmap(-1, int(sys.argv[1]) << 20, flags=how)
"""


def had(mib: int) -> None:
    """Touch so much memory and free it again: in a process of its own, which leaves nothing."""
    subprocess.run([sys.executable, "-S", "-c", _TOUCHED, str(mib)], check=True)
