"""Runs a Java program of ours against the classes of one Apache release."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

POM = Path(__file__).parent / "java-json" / "pom.xml"


def required(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        # In CI a missing Java would hide that nothing was tested.
        assert "CI" not in os.environ, f"{program} is missing"
        pytest.skip(f"{program} is not installed")
    return found


def class_path(release: str, folder: Path, pom: Path = POM) -> str:
    output = folder / "class-path"
    subprocess.run(
        [
            required("mvn"),
            "--batch-mode",
            "--quiet",
            f"--file={pom}",
            f"-Drocketmq.version={release}",
            f"-Dmdep.outputFile={output}",
            "dependency:build-classpath",
        ],
        check=True,
        timeout=600,
    )
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
