"""Everything that the files under deploy/ name exists; a real Prometheus scrapes a real broker."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.broker.scraped import scrape, scrape_of_all
from tests.broker.test_up import up_pages

DEPLOY = Path(__file__).parents[2] / "deploy"
CACHE = Path.home() / ".cache" / "cometmq-prometheus" / "usr" / "bin"
PATIENCE_SECONDS = 60

# A metric name in an expression: labels, a range, an operator or the end follows it, but no `(`.
NAME = re.compile(r"\b(?:cometmq|rocketmq|process)_[a-z_]+\b|\bup\b")
LABELS = re.compile(r"\b(?:by|without) \(([^)]*)\)")


def tool(name: str) -> str:
    """Find a program of Prometheus, from Debian's package or unpacked from it."""
    found = shutil.which(name) or shutil.which(name, path=str(CACHE))
    if found is None:
        pytest.skip(f"no {name}: `apt-get install prometheus`, or unpack that package to {CACHE}")
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Each expression of the dashboard and of the alerts, with its place."""
    dashboard = json.loads((DEPLOY / "grafana" / "cometmq.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]
    for expr in re.findall(r"^ +expr: (.+)$", (DEPLOY / "alerts.yml").read_text(), re.MULTILINE):
        yield "alerts.yml", expr


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of all samples of one scrape, by sample name."""
    text = scrape_of_all(tmp_path_factory.mktemp("scraped"))
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_every_expression_is_made_of_what_a_scrape_has(scraped: dict[str, set[str]]) -> None:
    count = 0
    for where, expr in expressions():
        names = set(NAME.findall(expr))
        assert names, f"{where}: {expr}"
        for name in names - {"up"}:
            assert name in scraped, f"{where}: there is no {name}"
            labels = scraped[name] | {"job", "instance"}
            for by in LABELS.findall(expr):
                assert set(by.replace(" ", "").split(",")) <= labels, f"{where}: {expr}"
        count += 1
    assert count > 40


def test_panels_have_places_and_numbers_of_their_own() -> None:
    panels = json.loads((DEPLOY / "grafana" / "cometmq.json").read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_the_commands_of_the_files_are_commands(tmp_path: Path) -> None:
    """Each runs with --help at the end, so that the program checks all words before that."""
    compose = (DEPLOY / "compose.yaml").read_text()
    units = "".join(path.read_text() for path in (DEPLOY / "systemd").iterdir())
    commands = [
        re.findall(r"[^,\s\[\]]+", found)
        for found in re.findall(r"^    command: \[(.*)\]$", compose, re.MULTILINE)
    ]
    (block,) = re.findall(r"^    command:\n((?:      - .*\n)+)", compose, re.MULTILINE)
    commands.append([line.strip()[2:] for line in block.splitlines()])
    commands += [
        found.split()[1:] for found in re.findall(r"^ExecStart=(.*)$", units, re.MULTILINE)
    ]
    assert len(commands) == 5
    for command in commands:
        program = [sys.executable, "-m", "cometmq.admin", *command, "--help"]
        done = subprocess.run(
            program, capture_output=True, text=True, check=False, cwd=tmp_path, env=os.environ
        )
        assert done.returncode == 0, (command, done.stderr)
        for option in [word.partition("=")[0] for word in command if word.startswith("--")]:
            assert option in done.stdout, (command, option)


def test_the_image_has_an_empty_folder_for_the_store() -> None:
    """`useradd` would put a shell's files into a home that it creates, where no store begins."""
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert "--no-create-home cometmq" in dockerfile
    assert "install --directory --owner cometmq --group cometmq /var/lib/cometmq" in dockerfile


def test_the_image_takes_the_pins_as_constraints_that_pip_accepts(tmp_path: Path) -> None:
    """One pin with an extra, as in `pyright[nodejs]==1.1`, makes pip refuse the whole file."""
    dockerfile = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    found = re.search(r"sed .* requirements/dev.txt > (/tmp/constraints.txt)", dockerfile)
    assert found is not None
    command = found[0].replace(found[1], str(tmp_path / "constraints.txt"))
    subprocess.run(command, shell=True, check=True, cwd=DEPLOY.parent)
    lines = (tmp_path / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert len(pins) > 50
    for pin in pins:
        assert re.fullmatch(r"[\w.-]+==[\w.]+( ; .+)?", pin), pin


def test_a_unit_refuses_unknown_system_calls_and_kills_nobody_for_them() -> None:
    """systemd 252 (Debian 12) lists `cachestat`, which a broker calls for old messages, nowhere.

    Without an error number, the filter would kill the broker at each read of a message before the
    hot end of the log. A refusal looks like an older kernel, and the broker reads in a thread.
    """
    units = sorted((DEPLOY / "systemd").iterdir())
    assert len(units) == 2
    for unit in units:
        lines = unit.read_text().splitlines()
        assert "SystemCallFilter=@system-service" in lines
        assert "SystemCallErrorNumber=EPERM" in lines, unit.name


@pytest.mark.slow
def test_prometheus_takes_the_rules_and_the_scrape(tmp_path: Path) -> None:
    promtool = tool("promtool")
    rules = subprocess.run(
        [promtool, "check", "rules", str(DEPLOY / "alerts.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert rules.returncode == 0, rules.stdout + rules.stderr
    config = subprocess.run(
        [promtool, "check", "config", "--syntax-only", str(DEPLOY / "prometheus.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert config.returncode == 0, config.stdout + config.stderr
    metrics = subprocess.run(
        [promtool, "check", "metrics"],
        input=scrape_of_all(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    # By its advice on names, Apache's names would have to change.
    problems = [line for line in metrics.stderr.splitlines() if not line.startswith("rocketmq_")]
    assert problems == [], metrics.stderr


@contextmanager
def prometheus(folder: Path, target: str) -> Generator[str]:
    """Run a Prometheus that scrapes one address each second; yield its own address."""
    program = tool("prometheus")
    config = (DEPLOY / "prometheus.yml").read_text()
    config = config.replace("15s", "1s").replace("alerts.yml", str(DEPLOY / "alerts.yml"))
    config = config.replace('"broker:5557"', f'"{target}"')
    (folder / "prometheus.yml").write_text(config)
    log = (folder / "log").open("w")
    command = [
        program,
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        "--web.listen-address=127.0.0.1:0",
    ]
    with subprocess.Popen(command, stderr=log, stdout=log) as process:
        try:
            yield _address(folder / "log")
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)
            log.close()


def _address(log: Path) -> str:
    text = _until(lambda: re.search(r"Listening on.*address=(\S+:\d+)", log.read_text()))
    return f"http://{text[1]}"


def _until(look: Any) -> Any:
    """Poll until there is a result, as Prometheus notifies nobody."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with suppress(urllib.error.HTTPError):  # 503 while it starts.
            found = look()
            if found:
                return found
        os.sched_yield()
    raise AssertionError("it did not come")


def _query(address: str, expr: str) -> list[Any]:
    query = urllib.parse.urlencode({"query": expr})
    found: list[Any] = json.loads(scrape(f"{address}/api/v1/query?{query}"))["data"]["result"]
    return found


@pytest.mark.slow
def test_a_real_prometheus_scrapes_a_running_broker(tmp_path: Path) -> None:
    with up_pages(tmp_path / "store") as pages:
        target = urllib.parse.urlsplit(pages).netloc
        with prometheus(tmp_path, target) as address:
            (health,) = _until(lambda: _query(address, 'up{job="cometmq-broker"} == 1'))
            assert health["metric"]["instance"] == target
            (found,) = _until(lambda: _query(address, "cometmq_store_writeable"))
            assert found["value"][1] == "1"
            for where, expr in expressions():
                if expr.startswith("label_values"):
                    continue
                asked = expr.replace("$node", ".*").replace("$__rate_interval", "1m")
                _query(address, asked)  # It answers 400 to an expression that cannot be evaluated.
                assert where
