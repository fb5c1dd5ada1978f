"""`python -m tests.fuzz [--seconds N] [TARGET...]`: fuzz each target in a process of its own.

With atheris (coverage-guided) where it is installed, else with plain random mutations. Exits with
1 when anything was found, and says how to see it again.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.target import (
    CORPUS,
    FINDINGS,
    INPUT_SIZE_MAX,
    SECONDS_MAX,
    SEEDS,
    check_one,
    target_names,
)

RSS_MIB_MAX = 1024
GRACE_SECONDS = 60


class Run(NamedTuple):
    """The result of one target's run."""

    target: str
    executions: int
    seconds: float
    failed: bool


def main() -> int:
    """Parse the arguments, run the targets, one on each core, and print the result."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", nargs="*", help="all, when none is named")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="at a time (the cores)")
    parser.add_argument("--random", action="store_true", help="random mutations, without atheris")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32, help="of the mutations")
    parser.add_argument("--input", help="check this one file and show what it does")
    arguments = parser.parse_args()
    names: list[str] = arguments.target or target_names()
    if unknown := set(names) - set(target_names()):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    if arguments.input:
        for name in names:
            check_one(name, arguments.input)
        return 0
    guided = importlib.util.find_spec("atheris") is not None and not arguments.random
    if not guided:
        say("random mutations: not guided by coverage, so a run proves less")
    runs: list[Run] = []
    one = partial(fuzz, seconds=arguments.seconds, seed=arguments.seed, guided=guided)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for run in pool.map(one, names):
            each = run.executions / max(run.seconds, 1e-9)
            state = "FOUND SOMETHING" if run.failed else "ok"
            say(f"{run.target:24} {run.executions:>10,} executions {each:>9,.0f}/s  {state}")
            runs.append(run)
    say(f"{'total':24} {sum(run.executions for run in runs):>10,} executions")
    return 1 if any(run.failed for run in runs) else 0


def say(line: str) -> None:
    """Print a line and flush it, as a run takes minutes."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def fuzz(name: str, seconds: int, seed: int, *, guided: bool) -> Run:
    """Run one target in a separate process, with limits on time and memory."""
    for folder in (CORPUS / name, FINDINGS, SEEDS / name):
        folder.mkdir(parents=True, exist_ok=True)
    command = guided_command(name, seconds) if guided else random_command(name, seconds, seed)
    started = time.monotonic()
    known = findings(name)
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=seconds + GRACE_SECONDS,
            check=False,
        )
        output, failed = done.stdout, done.returncode != 0
    except subprocess.TimeoutExpired as expired:
        output, failed = str(expired.stdout), True
    if failed:
        new = sorted(findings(name) - known)
        again = [f"see it again: python -m tests.fuzz {name} --input {each}" for each in new]
        say("\n".join([output[-6000:], *again]))  # At once, as other targets print too.
    counts = re.findall(r"(?:number_of_executed_units: |executions: )(\d+)", output)
    return Run(name, int(counts[-1]) if counts else 0, time.monotonic() - started, failed)


def findings(name: str) -> set[Path]:
    """Return the findings in a target, of this run and earlier ones."""
    return set(FINDINGS.glob(f"{name}-*"))


def guided_command(name: str, seconds: int) -> list[str]:
    """Return the command for atheris, with limits on input size, time for one input, and memory."""
    return [
        sys.executable,
        "-m",
        "tests.fuzz.guided",
        name,
        f"-max_total_time={seconds}",
        f"-max_len={INPUT_SIZE_MAX}",
        f"-timeout={SECONDS_MAX}",
        f"-rss_limit_mb={RSS_MIB_MAX}",
        f"-artifact_prefix={FINDINGS / name}-",
        "-print_final_stats=1",
        str(CORPUS / name),
        str(SEEDS / name),
    ]


def random_command(name: str, seconds: int, seed: int) -> list[str]:
    """Return the command for the random mutations."""
    return [sys.executable, "-m", "tests.fuzz.mutation", name, str(seconds), str(seed)]


if __name__ == "__main__":
    sys.exit(main())
