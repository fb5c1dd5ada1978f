"""The errors of the wire, and whose fault each is.

::

    ProtocolError
    ├── LocalProtocolError      ours: we asked for something that the protocol cannot express
    ├── MissingLibraryError     nobody's: a body needs a library that is not installed here
    ├── RefusedError            theirs, and legitimate: an answer with another code than expected
    └── RemoteProtocolError     theirs: bytes that are not the protocol
        ├── FieldError          a header field is missing or wrong; the frame around it is sound
        ├── BodyError           a body is not what its command carries; the frame around it is sound
        └── MessageError        a stored message, batch item, property string or id is malformed

A plain `RemoteProtocolError` breaks the connection, because the next frame cannot be found. Its
three children are answered with a response code and the connection goes on.
"""

from __future__ import annotations


class ProtocolError(Exception):
    """The root of this tree."""


class LocalProtocolError(ProtocolError):
    """We asked for something that the protocol cannot express."""


class MissingLibraryError(ProtocolError):
    """A body is, or should be, compressed by a library that is not installed here."""


class RefusedError(ProtocolError):
    """The peer answered with a code that the caller did not expect.

    `code` is the response code, `name` its name, `remark` the peer's explanation.
    """

    def __init__(self, code: int, name: str, remark: str | None) -> None:
        super().__init__(f"the answer is {name} ({code}){f': {remark}' if remark else ''}")
        self.code = code
        self.name = name
        self.remark = remark


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that are not the protocol; the text says what and where."""


class FieldError(RemoteProtocolError):
    """A header field is missing or has a wrong value."""

    def __init__(self, command: str, field: str, problem: str) -> None:
        """Name the command, its field as on the wire, and what is wrong with it."""
        super().__init__(f"{command}: field {field!r} {problem}")
        self.command = command
        self.field = field
        self.problem = problem


class BodyError(RemoteProtocolError):
    """A body is not what its command carries."""

    problem: str = ""
    """For a text that is not JSON: what is wrong; `at` is the character."""
    at: int | None = None


class MessageError(RemoteProtocolError):
    """A stored message, a batch item, a property string or a message id is malformed."""
