"""A live Apache 5.5.0 and we make the same files from one log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.interop.apache_broker import ApacheBroker
from tests.interop.apache_client import BrokerClient
from tests.interop.store_checks import check_queues_by_apache, found_in_log
from tests.interop.store_config_files import write_config_files
from tests.interop.store_content import APACHE_SETTINGS, IPV6, send
from tests.interop.store_sessions import opened, write_and_close

pytestmark = [pytest.mark.slow, pytest.mark.long]


def log_only(source: Path, target: Path, *, abort: bool) -> None:
    """Copy the part of a store that cannot be rebuilt."""
    for folder in ("commitlog", "config"):
        shutil.copytree(source / folder, target / folder)
    if abort:
        (target / "abort").write_text("1")


def files_of(root: Path) -> dict[str, bytes]:
    """Return all files that follow from the log; those of the index by number, not by time."""
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for kind in ("consumequeue", "batchconsumequeue")
        for path in (root / kind).rglob("*")
        if path.is_file()
    }
    for number, path in enumerate(sorted((root / "index").iterdir())):
        files[f"index/{number}"] = path.read_bytes()
    return files


def check_same(ours: Path, theirs: Path) -> None:
    mine, other = files_of(ours), files_of(theirs)
    assert sorted(mine) == sorted(other)
    assert [name for name in mine if mine[name] != other[name]] == []
    kinds = {name.partition("/")[0] for name in mine}
    assert kinds == {"consumequeue", "batchconsumequeue", "index"}
    assert len(mine) > 30


@pytest.mark.parametrize("abort", [True, False])
def test_apache_makes_of_our_log_the_files_that_we_made_and_we_of_its_log_its(
    tmp_path: Path, abort: bool
) -> None:
    ours, apache, again = (tmp_path / name / "store" for name in ("ours", "apache", "again"))
    known = write_and_close(ours, 0, 400, before_ms=60_000)
    known += write_and_close(ours, len(known), 300, before_ms=30_000, store_host=IPV6)
    write_config_files(str(ours))
    log_only(ours, apache, abort=abort)

    with ApacheBroker(apache.parent, APACHE_SETTINGS) as broker:
        with BrokerClient(broker.port) as client:
            check_queues_by_apache(client, found_in_log(apache, known))
            broker.stop()
        check_same(ours, apache)

    with ApacheBroker(apache.parent, APACHE_SETTINGS) as broker:
        with BrokerClient(broker.port) as client:
            known += send(client, len(known), 100)
        broker.stop()
    found_in_log(apache, known)
    log_only(apache, again, abort=abort)
    with opened(again):
        pass
    check_same(again, apache)
