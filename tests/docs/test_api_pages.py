"""The API pages build without a warning and have every public name with its example."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cometmq.client
import cometmq.testing

REPOSITORY = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("api")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-E", "-b", "html"]
    done = subprocess.run(
        [*command, REPOSITORY / "docs" / "api", folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_every_public_name_is_on_a_page(pages: Path) -> None:
    client, testing = ((pages / name).read_text() for name in ("client.html", "testing.html"))
    for page, package in ((client, cometmq.client), (testing, cometmq.testing)):
        for name in package.__all__:
            assert f'id="{package.__name__}.{name}"' in page, name
    assert 'id="cometmq.client.Client.send"' in client
    assert 'id="cometmq.testing.plugin.rocketmq"' in testing


@pytest.mark.slow
def test_examples_are_shown_as_code(pages: Path) -> None:
    text = (pages / "client.html").read_text()
    assert "highlight-default" in text
    assert "::</p>" not in text
