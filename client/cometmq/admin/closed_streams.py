"""Standard input and outputs that were closed before the program began, as `>&-` leaves them."""

from __future__ import annotations

import os
from typing import Final

_THE_OTHER_WAY: Final = (os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)
"""By number: it cannot be used, so who tries is told, as he is where it is closed."""


def hold_closed_streams() -> None:
    """Take the numbers of those that are closed, so that no file of ours gets one.

    What Python, or a child such as Java's, says to standard error would be written into that file.
    """
    for number, way in enumerate(_THE_OTHER_WAY):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, way)  # It gets the lowest number that is free: this one.
            os.set_inheritable(number, True)
