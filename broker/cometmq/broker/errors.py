"""What can go wrong in a broker, and whose fault it is.

::

    BrokerError
    ├── ConfigError              theirs, the operator's: no such setting, or not with this value
    │   └── SettingFixedError    it exists, but a running broker does not change it
    └── RequestError             theirs, the peer's: a request that is refused
        └── LimitError           ... because it is one too many; it names the setting

What the store refuses is a `PutRefusedError` or a `StoreFilesError`; what the network refuses, a
`NetError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.proto.codes import ResponseCode

if TYPE_CHECKING:
    from cometmq.proto.header import Header


class BrokerError(Exception):
    """The root of this tree."""


class ConfigError(BrokerError):
    """A setting that does not exist or cannot have this value; the text names it."""


class SettingFixedError(ConfigError):
    """A setting that is fixed while the broker runs."""


class RequestError(BrokerError):
    """A request that is refused: `dispatch` makes the answer of it, and nobody else does."""

    def __init__(self, code: int, remark: str, fields: Header | None = None) -> None:
        """Say why in a way that helps who asked; `fields` go with the answer."""
        super().__init__(remark)
        self.code = int(code)
        self.remark = remark
        self.fields = fields


class LimitError(RequestError):
    """A request for more than a setting allows; the remark names it, for who can change it."""

    def __init__(self, setting: str, limit: int, what: str) -> None:
        """Say which limit, and of what."""
        super().__init__(ResponseCode.SYSTEM_ERROR, f"{setting}: there are {limit} {what} already")
