"""Getting memory for a virtual machine before measuring something that fills memory.

A page that the machine has not used for a while may have gone back to its host, and the first write
to it then waits for the host: on the machine of docs/performance.md, that takes 2.7 s of CPU per
GiB, compared with 0.3 for pages that it has. A broker writes into new pages all the time, so on
such a machine, idle before and after, a measurement would measure the host. `had` gets pages from
the host and leaves them free, as they are on a machine in use or one with its own memory. The
effect lasts for seconds: repeat it for each run, and equally for everything that is compared.
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
    """Touch `mib` of memory and free it again, in a separate process, which leaves nothing."""
    subprocess.run([sys.executable, "-S", "-c", _TOUCHED, str(mib)], check=True)
