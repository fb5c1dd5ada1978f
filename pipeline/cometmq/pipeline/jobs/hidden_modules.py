"""Files in the working directory that hide modules of Python's standard library from Spark.

Spark starts its Python processes with `python -m`, which looks for modules in the working directory
first: a `copy.py` there is taken for Python's, and the processes fail. Jobs do not need that
folder, so their processes ignore it. Only jobs with user functions look there, as the functions'
imports may be there.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Generator

_SAFE_PATH: Final = "PYTHONSAFEPATH"


@contextmanager
def processes_for(settings: Any) -> Generator[None]:
    """Keep the working directory from the Python processes of the Java that is started now."""
    before = os.environ.get(_SAFE_PATH)
    if not getattr(settings, "udf", ()):
        os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        os.environ.pop(_SAFE_PATH, None)
        if before is not None:
            os.environ[_SAFE_PATH] = before


def about_hidden(text: str) -> str:
    """Return what to do about an error caused by a hidden module; otherwise ''."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # It was removed, with what it may have hidden.
        return ""
    for path in (*here.glob("*.py"), *here.glob("*/__init__.py")):
        name = path.relative_to(here).parts[0].removesuffix(".py")
        spoken_of = (str(path), f"module '{name}'", f"from '{name}'")
        if name in sys.stdlib_module_names and any(each in text for each in spoken_of):
            return (
                f"{path} hides Python's own module {name} from Spark's Python processes: rename it,"
                " or start this in another folder"
            )
    return ""
