"""What jobs need beside Spark for some formats, which is installed by extras of their own."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from cometmq.pipeline.errors import OptionError

_MODULES: Final = {"delta": ("deltalake",), "iceberg": ("pyiceberg", "sqlalchemy")}
"""What extras bring, by their names, which are those of the formats."""


def require_extra(option: str, extra: str) -> None:
    """Refuse a format whose extra is not installed, if it has one."""
    for each in _MODULES.get(extra, ()):
        if find_spec(each) is None:
            raise OptionError(
                f"{option}: {each} is missing: `make install-spark` in a clone of CometMQ,"
                f" elsewhere pip install 'cometmq[{extra}]'"
            )
