"""The errors of a name server, and whose fault each is.

::

    NameServerError
    ├── ConfigError              the operator's: no such setting, or not with this value
    │   └── SettingFixedError    it exists, but a running name server does not change it
    └── RequestError             the peer's: a request that is refused

A failing disk is an `OSError`, and a damaged file a `StoreFormatError`, as the store raises it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.proto.codes import ResponseCode


class NameServerError(Exception):
    """The root of this tree."""


class ConfigError(NameServerError):
    """A setting that does not exist or cannot have this value; the text names it."""


class SettingFixedError(ConfigError):
    """A setting that is fixed while the name server runs."""


class RequestError(NameServerError):
    """A request that is refused; only `dispatch` turns it into an answer."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        """Give a reason that helps the client."""
        super().__init__(remark)
        self.code = code
        self.remark = remark
