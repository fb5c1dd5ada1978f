"""Apache's own classes refuse the expressions that we refuse, and evaluate all others as we do.

The same seed gives the same expressions; `python -m tests.interop.test_java_filter` writes down a
part of what Apache's classes answer, for the tests that run without Java.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from tests.broker.filter.expressions import Expressions
from tests.broker.filter.outcomes import CORPUS, HAND_PICKED, outcomes
from tests.interop.apache_java import ask, class_path

pytestmark = pytest.mark.slow

RELEASES = (pytest.param("5.3.1", marks=pytest.mark.long), "5.5.0")
SOURCE = Path(__file__).parent / "java-filter" / "Evaluate.java"
SEED = 92
EXPRESSIONS = 20_000
KEPT = 2_000
MAPS_EACH = 6


def cases(count: int) -> list[tuple[str, list[dict[str, str]]]]:
    made = Expressions(SEED)
    expressions = [*HAND_PICKED, *(made.expression() for _ in range(count))]
    return [(each, [made.properties() for _ in range(MAPS_EACH)]) for each in expressions]


def packed(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def apaches(classes: str, asked: list[tuple[str, list[dict[str, str]]]]) -> list[str]:
    lines: list[str] = []
    for expression, maps in asked:
        texts = ["".join(f"{n}\x01{v}\x02" for n, v in each.items()) for each in maps]
        lines.append(" ".join(map(packed, [expression, *texts])))
    return ask(classes, SOURCE, lines)


@pytest.mark.parametrize("release", RELEASES)
def test_apache_finds_in_every_expression_what_we_find(release: str) -> None:
    asked = cases(EXPRESSIONS)
    answers = apaches(class_path(release), asked)
    assert answers.count("!") < len(answers) * 0.6, "too few can be compiled at all"
    differ = [
        (expression, maps, answer, ours)
        for (expression, maps), answer in zip(asked, answers, strict=True)
        if (ours := outcomes(expression, maps)) != answer
    ]
    assert not differ, (len(differ), differ[:5])


def write_corpus() -> None:
    """Write down what the newest release answers."""
    asked = cases(KEPT)
    answers = apaches(class_path(RELEASES[-1]), asked)
    with CORPUS.open("w", encoding="utf-8") as file:
        for (expression, maps), answer in zip(asked, answers, strict=True):
            line = [expression, answer, [] if answer == "!" else maps]
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    write_corpus()
