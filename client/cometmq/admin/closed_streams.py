"""Standard streams that were closed before the program began, as by `>&-`."""

from __future__ import annotations

import os
from typing import Final

_THE_OTHER_WAY: Final = (os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)
"""The wrong direction for each stream, so that using it is an error, as if it were closed."""


def hold_closed_streams() -> None:
    """Occupy the numbers of closed standard streams, so that no file of ours gets one.

    Otherwise, what Python or a child such as Java writes to standard error would go into that file.
    """
    for number, way in enumerate(_THE_OTHER_WAY):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, way)  # It gets the lowest free number, which is this one.
            os.set_inheritable(number, True)
