"""The outcomes of an expression on property maps, in the letters that Apache's classes print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.broker.filter.errors import FilterSyntaxError
from cometmq.broker.filter.java_values import UnfitValueError
from cometmq.broker.filter.sql import compile_sql

if TYPE_CHECKING:
    from collections.abc import Sequence

CORPUS = Path(__file__).parent.parent.parent / "vectors" / "filter" / "sql92.jsonl"

HAND_PICKED = (
    "a between 2 and 4 AND TAGS = 'TagA'", "a >", "", " ", "a between and", "a", "5", "'a'", "NULL",
    "TRUE", "-a", "+a", "NOT NULL", "a = NULL", "NULL = a", "a <> NULL", "NULL IS NULL",
    "TRUE IS NOT NULL", "5 IS NULL", "TRUE = 5", "5 = TRUE", "TRUE = 'true'", "'true' = TRUE",
    "TRUE = FALSE", "TRUE = a", "a = TRUE", "a > TRUE", "TRUE > a", "a > 'x'", "'x' > a",
    "a > NULL", "-a > 5", "5 > -a", "- 'a' > 5", "-a = -b", "-a IS NULL", "-a = 5", "- NULL = 5",
    "-TRUE = 5", "-(a = 1) = 5", "-NULL IS NULL", "a = b", "a > b", "a >= b", "a <> b", "a = b = c",
    "a > b > c", "(a = 1) = (b = 2)", "(a = 1) = b", "b = (a = 1)", "(a = 1) = 5", "5 = (a = 1)",
    "(a = 1) > 5", "NOT a = 1", "NOT (a = 1)", "NOT a IN ('a')", "(a) IN ('a')", "+a IN ('a')",
    "-a IN ('a')", "'a' IN ('a')", "a IN ()", "a IN (5)", "a IN ('a',)", "a NOT IN ('a', 'b', 'a')",
    "a BETWEEN 5 AND 2", "a BETWEEN -5 AND -7", "a BETWEEN 5 AND -7", "a NOT BETWEEN 5 AND 2",
    "a BETWEEN 'a' AND 'b'", "a BETWEEN 1 AND NULL", "5 BETWEEN a AND b", "a BETWEEN b AND c",
    "5 BETWEEN 1 AND 9", "TRUE BETWEEN 1 AND 9", "a BETWEEN 1.5 AND 1",
    "a BETWEEN 9007199254740993 AND 9007199254740992.0", "9007199254740993 = 9007199254740992.0",
    "9007199254740993 > 9007199254740992.0", "a CONTAINS ''", "a NOT CONTAINS ''", "a CONTAINS b",
    "'abc' CONTAINS 'b'", "5 CONTAINS '5'", "TRUE CONTAINS 'T'", "NULL CONTAINS 'T'",
    "(a = 1) NOT STARTSWITH 'x'", "a ENDSWITH 'a' = TRUE", "a = 1 b", "a = 1 )", "a = 1 #",
    "a = 1 b #", "a = 1 NOT b", "a = 1 IS b", "a = 1 'b", "(a = 1", "a = 012", "a = 0L", "a = 12L",
    "a = 5.5.5", "a = 1e", "a = 1e5", "a = .5", "a = 5.", "a = .", "a = 0.0", "a = -0.0",
    "a = 1e400", "a = 1e-400", "a = 4.9E-324", "a = 1.7976931348623157E308",
    "a = -9223372036854775808", "a = 9223372036854775807", "a > -9223372036854775807", "a --1",
    "a = --1", "a = - -1", "-- c\na = 1", "a = 1 -- c", "a = 1 -- c\n", "a = 1 -- c\r#",
    "/* c */ a = 1", "/* c", "a = /***/ 1", "a = 1 /* * / */", "a = 1 /**/#", "a = 'it''s'",
    "a = 'it''", "a = 'x\ny'", "a AND", "AND a", "a OR b AND c", "a = 1 OR b = 1 AND c = 1",
    "a = 5 OR TRUE", "TRUE OR a = 5", "FALSE AND a = 5", "a = 5 AND FALSE", "NOT NOT TRUE",
    "NOT(a)", "a=1AND b=2", "a = 1 AND(b = 2)", "a is not null", "a Is NuLl", "a CONTAINs 'a'",
    "\u212aEY = 1", "a I\u017f NULL", "a = 5 IS NULL", "a > 5 IS NULL", "a IS NULL IS NULL",
    "a IS NULL = b IS NULL", "a.b = 1", "a != 1", "a == 1", "a = ? ", "a LIKE 'x'", "a + 1 = 2",
    "a * 2", "$y = 5", "_x = 5", "5a = 5", "a\xa0= 1", "a\x0b= 1", "a\x0c=\t1\r\n",
    "(((((a = 1)))))", "a = 1)))", "IN = 1", "true", "nUlL iS nUlL",
)  # fmt: skip


LETTERS = {"True": "T", "False": "F", "None": "N"}


def outcomes(expression: str, maps: Sequence[dict[str, str]]) -> str:
    """Return `!` for a refusal, or for each map T, F, N (unknown) or E (values that do not fit)."""
    try:
        found = compile_sql(expression, 1 << 20)
    except FilterSyntaxError:
        return "!"
    letters: list[str] = []
    for properties in maps:
        try:
            truth = found.evaluate(properties)
        except UnfitValueError:
            letters.append("E")
        else:
            letters.append(LETTERS.get(repr(truth), "?"))
    return "".join(letters)
