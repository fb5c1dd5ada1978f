"""The errors of a broker, and whose fault each is.

::

    BrokerError
    ├── ConfigError              the operator's: no such setting, or not with this value
    │   └── SettingFixedError    it exists, but a running broker does not change it
    └── RequestError             the peer's: a request that is refused
        └── LimitError           ... because it is one too many; it names the setting

The store refuses with a `PutRefusedError` or a `StoreFilesError`, the network with a `NetError`.
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
    """A request that is refused; `refusals.refuse` turns it into an answer."""

    def __init__(self, code: int, remark: str, fields: Header | None = None) -> None:
        """Give a reason that helps the client; `fields` go with the answer."""
        super().__init__(remark)
        self.code = int(code)
        self.remark = remark
        self.fields = fields


class LimitError(RequestError):
    """A request for more than a setting allows; the remark names the setting."""

    def __init__(self, setting: str, limit: int, what: str) -> None:
        """Name the limit, and what it limits."""
        super().__init__(ResponseCode.SYSTEM_ERROR, f"{setting}: there are {limit} {what} already")
