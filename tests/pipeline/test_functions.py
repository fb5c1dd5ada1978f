"""Python functions for SQL: where they are found, and what type they have."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra cometmq[spark] is not installed")

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.functions import check_names, load, look_for_modules

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.spark

MODULE = """
import decimal
from datetime import date, datetime
from pyspark.sql.functions import udf
from pyspark.sql.types import ShortType

def text(x) -> str: ...
def number(x) -> "int | None": ...
def money(x) -> decimal.Decimal: ...
def day(x) -> date: ...
def many(x) -> list[float]: ...
def named(x) -> dict[str, list[datetime]]: ...
made = udf(lambda x: x, ShortType())
def silent(x): ...
def odd(x) -> set[int]: ...
def either(x) -> int | str: ...
def nothing(x) -> None: ...
def unknown(x) -> "Nowhere": ...
class Row: ...
def row(x) -> Row: ...
value = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write modules into the working directory, and return the name of each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    names: list[str] = []

    def write(text: str) -> str:
        name = f"{tmp_path.name}_{len(names)}"
        names.append(name)
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def test_a_function_has_the_type_that_it_says(module: Callable[[str], str]) -> None:
    name = module(MODULE)
    for function, kind in {
        "text": "string",
        "number": "bigint",
        "money": "decimal(38,18)",
        "day": "date",
        "many": "array<double>",
        "named": "map<string,array<timestamp>>",
        "made": "smallint",
    }.items():
        (found,) = load([f"{name}:{function}"]).values()
        assert found.returnType.simpleString() == kind, function


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("silent", "does not say what it returns: annotate it with one of Decimal, bool, bytes"),
        ("odd", r"returns set\[int\]: annotate it"),
        ("either", r"returns int \| str: annotate it"),
        ("nothing", "returns NoneType: annotate it"),
        ("row", "returns Row: annotate it"),
        ("unknown", "its annotations cannot be read: name 'Nowhere' is not defined"),
        ("missing", "there is no function missing in"),
        ("value", "there is no function value in"),
    ],
)
def test_what_has_no_type_of_spark_is_refused(
    module: Callable[[str], str], function: str, said: str
) -> None:
    name = module(MODULE)
    with pytest.raises(OptionError, match=f"^udf: .*{said}"):
        load([f"{name}:{function}"])


def test_a_module_that_cannot_be_imported_says_why(module: Callable[[str], str]) -> None:
    for text, said in (
        ("import nowhere_at_all", "needs a module that is missing: No module named 'nowhere_at"),
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
        ("def f(:", "cannot be imported: SyntaxError: "),
    ):
        with pytest.raises(OptionError, match=said):
            load([f"{module(text)}:f"])
    for named in ("nowhere:f", "nowhere.within:f"):
        for looked in (load, look_for_modules):
            with pytest.raises(OptionError, match="no module nowhere, neither in the working"):
                looked([named])


def test_a_module_is_looked_for_without_being_run(module: Callable[[str], str]) -> None:
    """A module may need Spark to be running: `udf` does, if its type is given as a text."""
    look_for_modules([f"{module('1 / 0')}:f"])


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (["prices"], "udf: 'prices' is not MODULE:FUNCTION"),
        (["prices:"], "udf: 'prices:' is not MODULE:FUNCTION"),
        ([":gross"], "udf: ':gross' is not MODULE:FUNCTION"),
        (["prices.py:gross tax"], "udf: 'prices.py:gross tax' is not MODULE:FUNCTION"),
        (["a:gross", "b:Gross"], "udf: a:gross and b:Gross have the same name in SQL"),
    ],
)
def test_names_that_cannot_be_are_refused(named: list[str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        check_names(named)
