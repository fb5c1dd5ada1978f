"""The signals with which tests ask one of our processes to end."""

from __future__ import annotations

import signal
from typing import Final

import pytest

HANG_UP: Final = pytest.param(
    signal.SIGHUP,
    marks=pytest.mark.skipif(
        signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, reason="the tests run under nohup"
    ),
)
ENDING: Final = (signal.SIGTERM, signal.SIGINT, HANG_UP)
