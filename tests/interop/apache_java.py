"""Runs a Java program of ours against the classes of one Apache release."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

POM = Path(__file__).parent / "java-json" / "pom.xml"


def required(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        # In CI a missing Java would hide that nothing was tested.
        assert "CI" not in os.environ, f"{program} is missing"
        pytest.skip(f"{program} is not installed")
    return found


@contextmanager
def one_at_a_time() -> Generator[None]:
    """Let no other process of the tests fetch the same files, or choose the same ports."""
    path = Path(tempfile.gettempdir(), f"cometmq-interop-{os.getuid()}.lock")
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def class_path(release: str, pom: Path = POM) -> str:
    """Return the class path of a release, as Maven says, or as it said on this machine before.

    Maven takes ten seconds to answer, and many modules ask.
    """
    asked = hashlib.sha256(f"{release} {pom.read_text()}".encode()).hexdigest()
    output = Path(tempfile.gettempdir(), f"cometmq-class-path-{os.getuid()}-{asked[:16]}")
    command = [
        required("mvn"),
        "--batch-mode",
        "--quiet",
        f"--file={pom}",
        f"-Drocketmq.version={release}",
        f"-Dmdep.outputFile={output}",
        "dependency:build-classpath",
    ]
    with one_at_a_time():
        known = output.read_text().split(os.pathsep) if output.exists() else []
        if not (known and all(Path(each).exists() for each in known)):
            subprocess.run(command, check=True, timeout=600)
        return output.read_text()


def ask(class_path: str, source: Path, lines: list[str]) -> list[str]:
    """Run a single-file program that answers each line of its input with one."""
    done = subprocess.run(
        [required("java"), "-cp", class_path, str(source)],
        input="".join(f"{line}\n" for line in lines),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    answers = done.stdout.splitlines()
    assert len(answers) == len(lines)
    return answers
