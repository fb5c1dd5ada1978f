"""The wheel for a cluster's executors, with only the pipeline.

The wheel of the whole distribution does not work with `--py-files`: executors do not have what
client and proto need, and Python 3.11 finds no namespace package in a zip without entries for its
folders. This wheel has these entries, and only `cometmq.pipeline`, which in executors imports only
the standard library, numpy, pyarrow and PySpark.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zipfile import ZIP_DEFLATED, ZipFile

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIPELINE: Final = Path(__file__).parent
_FINDERS: Final = ("pyspark_cometmq", "pyspark_cometmq_store")


def write_wheel(folder: str) -> str:
    """Write the wheel for `--py-files` into a folder, which is created; return its path."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    try:
        number = version("cometmq")
    except PackageNotFoundError:
        number = "0"
    path = Path(folder) / f"cometmq_pipeline-{number}-py3-none-any.whl"
    with ZipFile(path, "w", ZIP_DEFLATED) as wheel:
        wheel.mkdir("cometmq")
        for name, source in sorted(_entries()):
            if source.is_dir():
                wheel.mkdir(name)
            else:
                wheel.write(source, name)
    return str(path)


@cache
def temporary_wheel() -> str:
    """Write it into a folder that is removed when this process ends; return its path.

    It is the same one for all sessions: Spark refuses another file of that name.
    """
    folder = tempfile.mkdtemp(prefix="cometmq-pipeline-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_wheel(folder)


def _entries() -> Iterator[tuple[str, Path]]:
    packages = {"cometmq/pipeline": _PIPELINE}
    for name in _FINDERS:
        packages[name] = _PIPELINE.parent.parent / name
    for name, package in packages.items():
        if not package.is_dir():
            continue
        yield name, package
        for source in package.rglob("*"):
            if "__pycache__" not in source.parts and (source.is_dir() or source.suffix == ".py"):
                yield f"{name}/{source.relative_to(package).as_posix()}", source
