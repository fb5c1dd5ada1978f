r"""Settings as Java properties text: the bodies of 25, 26, 318 and 319, and `broker.conf`.

A line is `key=value`; `:` or a blank separates, too. `#` and `!` begin a comment. A backslash at
the end of a line joins the next line to it; elsewhere it begins an escape: `\t \n \r \f`, `\uXXXX`,
or any other character for itself. The value is the whole rest of the line, including blanks at its
end.

Not to be confused with the properties of a message: `cometmq.proto.properties`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cometmq.proto.errors import BodyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cometmq.proto.buffer import Buffer

_LINE_END = re.compile(r"\r\n|\r|\n")
_BLANKS = " \t\f"
_KEY = re.compile(r"(?:[^\\=: \t\f]|\\.)*+", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*+[=:]?[ \t\f]*+")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.?)", re.DOTALL)
_TO_ESCAPE = re.compile(r"[\\\t\n\r\f]|^ |[^\x20-\x7e]")
_TO_ESCAPE_IN_KEY = re.compile(r"[\\\t\n\r\f =:]|^[#!]|[^\x20-\x7e]")
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LETTER_OF = {character: letter for letter, character in _LETTERS.items()}


def decode_settings(data: Buffer | None) -> dict[str, str]:
    r"""Read a properties text in UTF-8; of equal keys the last wins. No body means no settings.

    Raises a `BodyError` for a malformed `\uXXXX` and for text that is not UTF-8.
    """
    return {key: value for _, key, value in _pairs(data)}


def lines_of_settings(data: Buffer) -> dict[str, int]:
    """Return the line of each key in a properties text; of equal keys, that of the last."""
    return {key: number for number, key, _ in _pairs(data)}


def encode_settings(properties: Mapping[str, str]) -> bytes:
    """Write a properties text in ASCII, in the given order, which reads back unchanged."""
    return "".join(
        f"{_TO_ESCAPE_IN_KEY.sub(_escaped, key)}={_TO_ESCAPE.sub(_escaped, value)}\n"
        for key, value in properties.items()
    ).encode()


def _pairs(data: Buffer | None) -> Iterator[tuple[int, str, str]]:
    """Yield keys and values, with the lines in which they begin."""
    try:
        text = bytes(data or b"").decode()
    except UnicodeDecodeError as error:
        raise BodyError(f"properties: not UTF-8 at byte {error.start}") from None
    for number, line in _logical_lines(text):
        key = _KEY.match(line)
        assert key is not None  # It also matches the empty string.
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None  # It also matches the empty string.
        yield number, _unescaped(key[0], number), _unescaped(line[separator.end() :], number)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, continued ones joined, without comments and blank lines."""
    pieces: list[str] = []
    first = 0
    for number, natural in enumerate(_LINE_END.split(text), 1):
        line = natural.lstrip(_BLANKS)
        if not pieces:
            if not line or line[0] in "#!":
                continue
            first = number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pieces.append(line[:-1])
            continue
        yield first, "".join((*pieces, line))
        pieces.clear()
    if pieces:
        yield first, "".join(pieces)


def _unescaped(text: str, number: int) -> str:
    if "\\" not in text:
        return text

    def character(match: re.Match[str]) -> str:
        escape = match[1]
        if len(escape) == 5:
            return chr(int(escape[1:], 16))
        if escape == "u":
            raise BodyError(f"properties: malformed \\uXXXX in line {number}")
        return _LETTERS.get(escape, escape)

    plain = _ESCAPE.sub(character, text)
    try:
        # Java writes a character beyond the BMP as two escapes.
        return plain.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeDecodeError:
        raise BodyError(f"properties: half a surrogate pair in line {number}") from None


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if character in _LETTER_OF:
        return "\\" + _LETTER_OF[character]
    if " " <= character <= "~":
        return "\\" + character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))
