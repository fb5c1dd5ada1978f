"""Programs with the official Java client, to compare ours with."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.interop.apache_java import class_path, required

RELEASE: Final = "5.5.0"
HERE: Final = Path(__file__).parent
POM: Final = HERE.parent / "tests" / "interop" / "java" / "pom.xml"


def java_command(folder: Path, program: str = "JavaClient") -> list[str]:
    """Compile a program, so that its start costs no compilation; return its command."""
    source = HERE / f"{program}.java"
    path = class_path(RELEASE, POM)
    subprocess.run([required("javac"), "-cp", path, "-d", str(folder), str(source)], check=True)
    return [required("java"), "-cp", f"{folder}:{path}", program]
