"""Where `deltalake` looks for a table, and how it gets there."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from cometmq.pipeline.errors import OptionError
from cometmq.pipeline.jobs.delta_stores import address, settings_of

if TYPE_CHECKING:
    from cometmq.pipeline.jobs.folders import Folder


class Place:
    """A folder, as far as it is looked at."""

    def __init__(self, path: str, **settings: str) -> None:
        self.path = path
        self.scheme = path.partition("://")[0] if "://" in path else "file"
        self.local_path = path if self.scheme == "file" else None
        self._settings = {f"fs.s3a.{name}": value for name, value in settings.items()}

    def of(self, *names: str) -> str:
        """Return the path of something in it."""
        return "/".join((self.path.rstrip("/"), *names))

    def exists(self, *_: str) -> bool:
        """Nothing is in it."""
        return False

    def setting(self, name: str) -> str:
        """Return one of Hadoop's settings."""
        return self._settings.get(name, "")


def folder(path: str, **settings: str) -> Folder:
    return cast("Folder", Place(path, **settings))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/data/a b#?", "file:///data/a%20b%23%3F"),
        ("s3a://bucket/a b", "s3://bucket/a b"),
        ("s3://bucket/a/b", "s3://bucket/a/b"),
    ],
)
def test_a_table_has_an_address(path: str, said: str) -> None:
    assert address(folder(path), "to") == said


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/data/100%41", r"^to: the path /data/100%41 contains '%'"),
        ("/data/a\\b", r"^to: the path /data/a\\b contains '\\\\'"),
        ("hdfs://host/a", r"^to: hdfs://host/a is neither on this machine's disk nor on S3"),
    ],
)
def test_a_place_that_deltalake_does_not_reach_is_refused(path: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        address(folder(path), "to")


def test_s3_is_reached_as_spark_reaches_it() -> None:
    settings = {"access.key": "a", "secret.key": "b", "session.token": "c"}
    assert settings_of(folder("s3a://bucket/a", **settings)) == {
        "aws_access_key_id": "a",
        "aws_secret_access_key": "b",
        "aws_session_token": "c",
    }
    there = {"endpoint": "http://127.0.0.1:9000", "endpoint.region": "eu-1"}
    assert settings_of(folder("s3a://bucket/a", **there)) == {
        "aws_endpoint": "http://127.0.0.1:9000",
        "aws_region": "eu-1",
        "aws_allow_http": "true",
    }
    assert settings_of(folder("s3a://bucket/a", endpoint="s3.example.com")) == {
        "aws_endpoint": "https://s3.example.com"
    }
    assert settings_of(folder("/data/a", **there)) == {}
