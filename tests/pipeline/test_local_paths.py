"""Which paths are on this machine, found out without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.pipeline.jobs.local_paths import local_path, path_within


@pytest.mark.parametrize("said", ["/a b/c", "file:/a b/c", "file:///a b/c"])
def test_a_uri_of_this_machine_is_the_path_in_it(said: str) -> None:
    assert local_path(said) == Path("/a b/c")


def test_a_path_may_be_relative() -> None:
    assert local_path("out/of=1") == Path("out/of=1")


@pytest.mark.parametrize("said", ["hdfs://host/a", "hdfs:/a", "s3a://bucket/a", "//host/a"])
def test_what_is_elsewhere_has_none(said: str) -> None:
    assert local_path(said) is None


@pytest.mark.parametrize(
    ("said", "folder", "names"),
    [
        ("/a/b", "file:///a/", ("b",)),
        ("/a/", "/a", ()),
        ("/a/../b", "/a", None),
        ("/ab", "/a", None),
        ("s3a://bucket/a/b/c/", "s3a://bucket/a", ("b", "c")),
        ("s3a://bucket/a", "/a", None),
    ],
)
def test_names_below_a_folder(said: str, folder: str, names: tuple[str, ...] | None) -> None:
    assert path_within(said, folder) == names
