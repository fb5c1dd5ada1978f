"""Python functions for the SQL of a job: `--udf MODULE:FUNCTION`.

::

    # prices.py
    def gross(net: float | None) -> float | None:
        return None if net is None else net * 1.19

    cometmq pipeline transform --udf prices:gross --sql 'SELECT ..., gross(value.net) ...'

A function has the return type of its annotation, or is a `pyspark.sql.functions.udf` (or a
`pandas_udf`), which has a type. SQL calls it by its name. The module is imported here, from the
working directory or the `PYTHONPATH`. Executors get what its functions need from it, but not the
module: they could not import one that has a `udf` whose type is given as text. Modules that it
imports must be installed there.
"""

from __future__ import annotations

import sys
import types
import typing
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from cometmq.pipeline.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from pyspark.sql import SparkSession

_TYPES: Final[dict[Any, str]] = {
    bool: "BooleanType",
    bytes: "BinaryType",
    date: "DateType",
    datetime: "TimestampType",
    Decimal: "DecimalType",
    float: "DoubleType",
    int: "LongType",
    str: "StringType",
}
"""Python's types, and Spark's classes for them."""
_DIGITS: Final = (38, 18)
"""The digits of a decimal number, and how many of them follow the point."""


def check_names(named: Iterable[str]) -> None:
    """Refuse what is not the name of a function, and two functions with one name."""
    names: dict[str, str] = {}
    for each in named:
        module, _, name = each.partition(":")
        if not (name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
            raise OptionError(f"udf: {each!r} is not MODULE:FUNCTION")
        if other := names.get(name.lower()):
            raise OptionError(f"udf: {other} and {each} have the same name in SQL")
        names[name.lower()] = each


def look_for_modules(named: Iterable[str]) -> None:
    """Refuse names of missing modules; do not run modules, as one may need Spark for a function."""
    for each in named:
        module = each.partition(":")[0]
        with _found_here(module):
            if find_spec(module) is None:
                raise ModuleNotFoundError(name=module)


def load(named: Iterable[str]) -> dict[str, Any]:
    """Return functions by their names, each in a form that Spark accepts."""
    from pyspark import cloudpickle
    from pyspark.sql.functions import udf

    pickling: Any = cloudpickle  # It has no types.
    found: dict[str, Any] = {}
    for each in named:
        module, _, name = each.partition(":")
        with _found_here(module):
            imported = import_module(module)
        pickling.register_pickle_by_value(imported)
        function = getattr(imported, name, None)
        if not callable(function):
            raise OptionError(f"udf: there is no function {name} in {module}")
        if not hasattr(function, "returnType"):
            # With Arrow: otherwise Spark makes null of any value that does not have exactly the
            # declared type, such as a whole number instead of a float.
            function = udf(function, _type_of(each, function), useArrow=True)
        found[name] = function
    return found


@contextmanager
def known(spark: SparkSession, named: Iterable[str]) -> Generator[None]:
    """Register functions in a session for the block, except those that it already has."""
    found = load(named)
    new = [name for name in found if not spark.catalog.functionExists(name)]
    for name, function in found.items():
        spark.udf.register(name, function)
    try:
        yield
    finally:
        for name in new:
            spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS `{name}`")


@contextmanager
def _found_here(module: str) -> Generator[None]:
    """Also look in the working directory, and say what is wrong with a module."""
    if "" not in sys.path:
        sys.path.insert(0, "")  # As for `python -m`, and for Spark's workers.
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise OptionError(f"udf: {module} needs a module that is missing: {error}") from None
        raise OptionError(
            f"udf: there is no module {error.name}, neither in the working directory nor in the"
            " PYTHONPATH"
        ) from None
    except Exception as error:
        kind = type(error).__name__
        raise OptionError(f"udf: {module} cannot be imported: {kind}: {error}") from error


def _type_of(named: str, function: Any) -> Any:
    """Return the type that a function declares to return, as Spark's."""
    try:
        said = typing.get_type_hints(function).get("return")
    except (NameError, TypeError) as error:
        raise OptionError(f"udf: {named}: its annotations cannot be read: {error}") from None
    found = None if said is None else _as_of_spark(said)
    if found is None:
        what = "does not say what it returns" if said is None else f"returns {_shown(said)}"
        raise OptionError(
            f"udf: {named} {what}: annotate it with one of"
            f" {', '.join(sorted(each.__name__ for each in _TYPES))}, a list or dict of those, or"
            " make it by pyspark.sql.functions.udf, which takes any type of Spark"
        )
    return found


def _as_of_spark(said: Any) -> Any:
    from pyspark.sql import types as of_spark

    if said is Decimal:
        return of_spark.DecimalType(*_DIGITS)
    if said in _TYPES:
        return getattr(of_spark, _TYPES[said])()
    origin, arguments = typing.get_origin(said), typing.get_args(said)
    if origin in (typing.Union, types.UnionType):
        some = [each for each in arguments if each is not type(None)]
        return _as_of_spark(some[0]) if len(some) == 1 else None
    inner: list[Any] = [_as_of_spark(each) for each in arguments]
    if None in inner:
        return None
    if origin is list and len(inner) == 1:
        return of_spark.ArrayType(inner[0])
    if origin is dict and len(inner) == 2:
        return of_spark.MapType(*inner)
    return None


def _shown(said: Any) -> str:
    return said.__name__ if isinstance(said, type) else str(said)
