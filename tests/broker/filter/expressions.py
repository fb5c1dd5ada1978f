"""Makes random expressions and properties, both as people write them and with their mistakes."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMES = ("a", "b", "c", "TAGS", "_x", "$y", "A")
NUMBERS = (
    "0", "1", "2", "5", "5L", "7l", "10", "2147483647", "2147483648", "9223372036854775807", "0.5",
    "1.5", "2.0", "5.", ".5", "1e3", "1E-2", "5.e2", "9007199254740993", "9007199254740992.0",
)  # fmt: skip
NO_NUMBERS = (
    "9223372036854775808", "99999999999999999999999", "0.0", "1e400", "1e-400", "007", "0L", "1e",
)  # fmt: skip
TEXTS = ("''", "'a'", "'5'", "'x y'", "'it''s'", "'TRUE'", "'true'", "'1.5'", "'ü'", "'😀'", "'%'")
VALUES = (
    "a", "5", "-5", "+5", "5.0", " 5", "5 ", "05", "2", "1", "0", "1.5", "2.0", "true", "TRUE",
    "false", "abc", "xay", "it's", "2147483647", "2147483648", "-2147483648", "-2147483649", "1e3",
    "1000", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "x y", "%",
    "9007199254740993", "NaN", "-NaN", "Infinity", "-Infinity", "inf", "nan", "0.0", "-0.0", "5f",
    "0x1p3", "0x.8p1f", "0x10", "5d", "5L", "1_0", "", "٣", "\uff13.5", "\U0001d7db", "ü", "😀",
    "\t5\n", ".5", "5.", ".", "+", "-", "e5", "1e", "1e400", "-1e400", "1e-400", "TagA",
    "00000000000000000000000000005",
)  # fmt: skip
COMPARISONS = (" = ", "=", " <> ", " > ", " >= ", " < ", "<=")
TEXT_TESTS = ("CONTAINS", "contains", "STARTSWITH", "StartsWith", "ENDSWITH", "endswith")
NOISE = (
    "AND", "OR", "NOT", "IS", "NULL", "IN", "BETWEEN", "TRUE", "(", ")", ",", "=", "<>", "<", ">",
    "<=", ">=", "+", "-", "--", "-- c\n", "/* c */", "/*", "'", "a", "5", "'a'", "#", "ü", "\x00",
    "*", "\u212a", "i\u017f", "if", "CONTAINS", "!=", "==", ".", ";", "\t", "\f", "\x0b", "\xa0",
    "/***/",
)  # fmt: skip


class Expressions:
    """Expressions of one seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def expression(self) -> str:
        """Make an expression. Most compile; some are spoiled."""
        text = self._condition(self._random.randrange(4))
        while self._random.random() < 0.15:
            text = self._spoiled(text)
        return text

    def properties(self) -> dict[str, str]:
        """Make properties, with values that the expressions compare with."""
        chosen = self._random.sample(NAMES, self._random.randrange(len(NAMES) + 1))
        found = {name: self._random.choice(VALUES) for name in chosen}
        return {name: value for name, value in found.items() if value}

    def _one(self, *choices: str) -> str:
        return self._random.choice(choices)

    def _list(self, choices: Sequence[str]) -> str:
        return ", ".join(self._random.choices(choices, k=self._random.randrange(1, 7)))

    def _number(self) -> str:
        choices = NUMBERS if self._random.random() < 0.96 else NO_NUMBERS
        return self._one("", "", "", "", "-", "+", "- -", "--") + self._random.choice(choices)

    def _operand(self) -> str:
        chance = self._random.random()
        if chance < 0.6:
            sign = self._one("+", "-") if self._random.random() < 0.04 else ""
            return sign + self._random.choice(NAMES)
        if chance < 0.93:
            return self._number()
        if chance < 0.96:
            return self._random.choice(TEXTS)
        return self._one("TRUE", "false", "NULL", "(a)", "(a = 1)", "(5)", "NOT a", "NOT (a = 'a')")

    def _condition(self, depth: int) -> str:
        if depth == 0:
            return self._comparison()
        chance = self._random.random()
        if chance < 0.7:
            parts = [self._condition(depth - 1) for _ in range(self._random.randrange(2, 4))]
            return self._one(" AND ", " OR ", " and ", " or ").join(parts)
        if chance < 0.85:
            return f"({self._condition(depth - 1)})"
        return f"{self._one('NOT', 'not')} {self._one('', '(')}{self._condition(depth - 1)})"

    def _comparison(self) -> str:
        operand = self._operand()
        chance = self._random.random()
        if chance < 0.1:
            return operand + self._one(" = ", "<>") + self._random.choice(TEXTS)
        if chance < 0.45:
            return operand + self._random.choice(COMPARISONS) + self._operand()
        if chance < 0.6:
            low, high = self._operand(), self._operand()
            return f"{operand} {self._one('', 'NOT ', 'not ')}BETWEEN {low} AND {high}"
        if chance < 0.7:
            operand = operand if self._random.random() < 0.1 else self._random.choice(NAMES)
            return f"{operand} {self._one('', 'NOT ')}IN ({self._list(TEXTS)})"
        if chance < 0.85:
            test = f"{self._one('', 'NOT ')}{self._random.choice(TEXT_TESTS)}"
            return f"{operand} {test} {self._random.choice(TEXTS)}"
        if chance < 0.95:
            return f"{operand} {self._one('IS NULL', 'is not null')}"
        return operand if self._random.random() < 0.2 else self._random.choice(NAMES)

    def _spoiled(self, text: str) -> str:
        words = text.split(" ")
        at = self._random.randrange(len(words))
        chance = self._random.random()
        if chance < 0.4:
            words.insert(at, self._random.choice(NOISE))
        elif chance < 0.6:
            del words[at]
        elif chance < 0.8:
            words[at] = self._random.choice(NOISE)
        else:
            words.append(self._random.choice(NOISE))
        return " ".join(words)
