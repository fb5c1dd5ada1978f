"""Apache's black-box suite against Apache's broker and ours: `python -m tests.interop.e2e DIR`.

DIR is a clone of apache/rocketmq-e2e. Its `java/e2e-v4` is run with the client 4.9.3 that it names,
six tests at a time, as most of them sleep. The clone is not changed: a copy gets a lombok that JDK
17 can run. Every test that passes against Apache must pass against ours; tests that fail on either
are printed. A test that fails is run once more, as the suite's own build file says.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree

from tests.broker.test_up import running
from tests.interop.apache_broker import ApacheBroker

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

TARGETS: Final = ("apache", "cometmq")
AT_ONCE: Final = 6
OLD_LOMBOK, LOMBOK = "<version>1.18.8</version>", "<version>1.18.34</version>"
PASSED, AGAIN, FAILED, SKIPPED = "passed", "passed when run again", "failed", "skipped"


def copied(clone: Path, folder: Path) -> Path:
    """Copy the suite so that today's compiler can build it; return the module's folder."""
    java = clone / "java"
    if not (java / "e2e-v4" / "pom.xml").exists():
        raise SystemExit(f"{clone} has no java/e2e-v4: is it a clone of apache/rocketmq-e2e?")
    shutil.copytree(java / "e2e-v4", folder / "e2e-v4", ignore=shutil.ignore_patterns("target"))
    parent = (java / "pom.xml").read_text()
    (folder / "pom.xml").write_text(parent.replace(OLD_LOMBOK, LOMBOK))
    return folder / "e2e-v4"


@contextmanager
def server(target: str, folder: Path) -> Generator[str]:
    """Run a name server and a broker; yield the name server's address."""
    if target == "apache":
        with ApacheBroker(folder, {}) as broker:
            yield broker.nameserver
    else:
        with running(folder / "data", "--flush", "async") as (_, found):
            yield f"127.0.0.1:{found[1]}"


def run(suite: Path, nameserver: str, logs: Path, tests: str | None) -> None:
    """Run the suite once; its reports say whether it passed."""
    parallel = "junit.jupiter.execution.parallel.config"
    command = [
        *("mvn", "-B", "-q", "test", "-fae", "-DfailIfNoTests=false"),
        *(f"-DnamesrvAddr={nameserver}", f"-Drocketmq.client.logRoot={logs}"),
        *(f"-D{parallel}.strategy=fixed", f"-D{parallel}.fixed.parallelism={AT_ONCE}"),
        *([f"-Dtest={tests}"] if tests else []),
    ]
    shutil.rmtree(suite / "target" / "surefire-reports", ignore_errors=True)
    with (logs / "maven.log").open("w") as log:
        subprocess.run(command, cwd=suite, stdout=log, stderr=subprocess.STDOUT, check=False)


def outcomes(suite: Path) -> dict[str, str]:
    """Read how each test ended, by its name."""
    found: dict[str, str] = {}
    for report in sorted((suite / "target" / "surefire-reports").glob("TEST-*.xml")):
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
            found[name] = _outcome({child.tag for child in case})
    return found


def _outcome(tags: set[str]) -> str:
    if tags & {"failure", "error"}:
        return FAILED
    if "skipped" in tags:
        return SKIPPED
    return AGAIN if tags & {"flakyFailure", "flakyError"} else PASSED


def compared(found: dict[str, dict[str, str]]) -> tuple[list[str], bool]:
    """Say what differs or fails, and whether ours passes every test that Apache's passes."""
    lines: list[str] = []
    is_good = True
    names = {name for results in found.values() for name in results}
    for name in sorted(names):
        ends = {target: results.get(name, "not run") for target, results in found.items()}
        if set(ends.values()) <= {PASSED, SKIPPED}:
            continue
        lines.append(f"{name}: " + ", ".join(f"{who} {how}" for who, how in ends.items()))
        passes = {who: how in (PASSED, AGAIN) for who, how in ends.items()}
        is_good = is_good and (passes.get("cometmq", True) or not passes.get("apache", True))
    return lines, is_good


def tell(text: str) -> None:
    """Print."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite against both brokers, or one, and compare."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop.e2e", description=__doc__)
    parser.add_argument("clone", type=Path, help="a clone of apache/rocketmq-e2e")
    parser.add_argument("--target", choices=TARGETS, help="only this one")
    parser.add_argument("--test", help="only these, as Maven takes them: OffsetTest#test*")
    parser.add_argument("--keep", type=Path, help="where to keep logs and reports")
    options = parser.parse_args(arguments)
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory(prefix="cometmq-e2e-") as name:
        folder = options.keep or Path(name)
        suite = copied(options.clone, Path(name))
        for target in [options.target] if options.target else TARGETS:
            home = (folder / target).absolute()
            home.mkdir(parents=True, exist_ok=True)
            with server(target, home) as nameserver:
                run(suite, nameserver, home, options.test)
            found[target] = outcomes(suite)
            if not found[target]:
                raise SystemExit((home / "maven.log").read_text()[-4000:])
            counts = sorted(Counter(found[target].values()).items())
            tell(f"{target}: {', '.join(f'{count} {how}' for how, count in counts)}")
    lines, is_good = compared(found)
    tell("\n".join(lines))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
