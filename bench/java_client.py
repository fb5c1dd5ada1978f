"""The official Java client doing what `bench.client` measures of ours: `JavaClient.java`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.interop.apache_java import class_path, required

RELEASE: Final = "5.5.0"
SOURCE: Final = Path(__file__).with_name("JavaClient.java")
POM: Final = SOURCE.parent.parent / "tests" / "interop" / "java" / "pom.xml"


def java_command(folder: Path) -> list[str]:
    """Compile the program, and return how it is started: so its start costs no compiling."""
    path = class_path(RELEASE, folder, POM)
    subprocess.run([required("javac"), "-cp", path, "-d", str(folder), str(SOURCE)], check=True)
    return [required("java"), "-cp", f"{folder}:{path}", SOURCE.stem]
