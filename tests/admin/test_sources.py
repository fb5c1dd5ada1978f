"""The sources of a daemon's settings, and their precedence."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from cometmq.admin.daemons import broker_config, nameserver_config
from cometmq.admin.sources import BROKER, NAMESERVER, Settings
from cometmq.broker.config import BrokerConfig
from cometmq.broker.settings import configured
from cometmq.nameserver import NameServerConfig, configured as nameserver_configured

KNOWN = {BROKER: {"flush", "listen_port", "broker_name"}, NAMESERVER: {"listen_port"}}


def from_file(folder: Path, name: str, text: str, main: str = BROKER) -> Settings:
    path = folder / name
    path.write_text(text)
    settings = Settings(main)
    settings.add_file(str(path))
    return settings


def test_a_toml_file_has_a_table_for_each_daemon(tmp_path: Path) -> None:
    text = 'flush = "async"\n[broker]\nlisten_port = 1\n[nameserver]\nlisten_port = 2\n'
    settings = from_file(tmp_path, "a.toml", text)
    assert settings.of == {
        BROKER: {"flush": "async", "listen_port": 1},
        NAMESERVER: {"listen_port": 2},
    }


def test_keys_without_a_table_are_for_the_daemon_that_reads_them(tmp_path: Path) -> None:
    settings = from_file(tmp_path, "a.toml", "listen_port = 3\n", NAMESERVER)
    assert settings.of == {BROKER: {}, NAMESERVER: {"listen_port": 3}}


@pytest.mark.parametrize(
    ("name", "text"), [("a.toml", 'broker_name = "b"\r\n'), ("broker.conf", "brokerName=b\r\n")]
)
def test_a_file_of_an_editor_of_windows_is_read_as_it_is_meant(
    name: str, text: str, tmp_path: Path
) -> None:
    """It begins with an invisible byte order mark, and its lines end with two characters."""
    config, _ = configured(BrokerConfig(), from_file(tmp_path, name, f"\ufeff{text}").of[BROKER])
    assert config.broker_name == "b"


def test_a_misspelt_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match=r"table brokr: no such.*did you mean broker\?"):
        from_file(tmp_path, "a.toml", "[brokr]\n")


def test_a_broker_conf_flushes_asynchronously_unless_it_says_else(tmp_path: Path) -> None:
    settings = from_file(tmp_path, "broker.conf", "listenPort=5\n# no more\n")
    assert settings.of[BROKER] == {"flushDiskType": "ASYNC_FLUSH", "listenPort": "5"}
    settings = from_file(tmp_path, "broker.conf", "flushDiskType=SYNC_FLUSH\n")
    assert settings.of[BROKER] == {"flushDiskType": "SYNC_FLUSH"}
    settings = from_file(tmp_path, "namesrv.conf", "listenPort=5\n", NAMESERVER)
    assert settings.of[NAMESERVER] == {"listenPort": "5"}


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.toml", "flush = sync", "Invalid value.*; a text needs quotes in TOML"),
        ("a.toml", "\udcff", "codec can't decode"),
        ("a.conf", "a=\\u12", "malformed"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_clear_error(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(click.UsageError, match=rf"--config .*{name}: .*{problem}"):
        Settings(BROKER).add_file(str(tmp_path / name))
    with pytest.raises(click.UsageError, match="No such file"):
        Settings(BROKER).add_file(str(tmp_path / "missing"))


def test_the_environment_has_a_name_for_each_setting() -> None:
    settings = Settings(BROKER)
    environ = {
        "COMETMQ_FLUSH": "async",
        "COMETMQ_BROKER_NAME": "b",
        "COMETMQ_NAMESERVER_LISTEN_PORT": "7",
        "HOME": "/",
    }
    settings.add_environment(environ, KNOWN)
    assert settings.of == {
        BROKER: {"flush": "async", "broker_name": "b"},
        NAMESERVER: {"listen_port": "7"},
    }
    assert settings.warnings == []


def test_a_name_that_means_nothing_is_told_and_passed_over() -> None:
    """Platforms set variables that begin like ours, such as COMETMQ_SERVICE_HOST."""
    settings = Settings(BROKER)
    settings.add_environment({"COMETMQ_FLSH": "async", "COMETMQ_SERVICE_HOST": "x"}, KNOWN)
    assert settings.of[BROKER] == {}
    assert settings.warnings == [
        "environment: COMETMQ_FLSH: flsh: no such setting; did you mean flush?",
        "environment: COMETMQ_SERVICE_HOST: service_host: no such setting",
    ]


def test_what_clients_and_the_pipeline_read_is_passed_over_without_a_word() -> None:
    settings = Settings(BROKER)
    theirs = ("ACCESS_KEY", "SECRET_KEY", "TO_ACCESS_KEY", "TO_SECRET_KEY", "SPARK_LOG")
    settings.add_environment({f"COMETMQ_{name}": "x" for name in theirs}, KNOWN)
    assert (settings.of[BROKER], settings.warnings) == ({}, [])


def test_pairs_are_for_the_main_daemon_unless_they_say_else() -> None:
    settings = Settings(BROKER)
    settings.add_pairs(["flush=async", "nameserver.listen_port=1", "broker.region_id=a=b"])
    assert settings.of == {
        BROKER: {"flush": "async", "region_id": "a=b"},
        NAMESERVER: {"listen_port": "1"},
    }
    with pytest.raises(click.UsageError, match="--set flush: must be key=value"):
        settings.add_pairs(["flush"])


def test_what_is_added_later_comes_later_by_whatever_name() -> None:
    """Of two names of one setting the later counts, so a repeated key must move to the end."""
    settings = Settings(BROKER)
    settings.add(BROKER, {"listen_port": 1})
    settings.add(BROKER, {"listenPort": 2})
    settings.add(BROKER, {"listen_port": 3})
    assert list(settings.of[BROKER].items()) == [("listenPort", 2), ("listen_port", 3)]


def test_the_example_of_the_documentation_is_accepted(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    (example,) = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    settings = from_file(tmp_path, "broker.toml", example)
    broker = configured(BrokerConfig(), settings.of[BROKER]).config
    assert (broker.broker_name, broker.store.segment_size) == ("broker-b", 256 << 20)
    assert nameserver_configured(NameServerConfig(), settings.of[NAMESERVER]).warnings == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.conf", "\n# a=b\nfileReservedTime: x\n", "line 3: fileReservedTime: 'x' is not"),
        ("a.conf", "a\\u0062c=1", "line 1: abc: no such setting"),
        ("a.conf", "regionId=\\\nlistenPort=y\nlistenPort=x", "line 3: listenPort: 'x' is not"),
        ("a.conf", "brokerName=a\nfileReservedTime=0", "line 2: retention_hours: 0 is not"),
        ("a.conf", "brokerRole=SLAVE", "line 1: brokerRole: only ASYNC_MASTER"),
        ("a.conf", "brokerIP1=a.invalid", "line 1: brokerIP1 a.invalid: "),
        ("a.toml", "[nameserver]\nlisten_port = 1\n[broker]\nlisten_port = -1", "line 4: listen_"),
        ("a.toml", "\n'flush' = 'x'", "line 2: flush: 'x' is not sync or async"),
        ("a.toml", "broker.flush = 'x'", "a.toml: flush: 'x' is not sync or async"),
        ("a.toml", "[broker]\nflsh = 'sync'", "line 2: flsh: no such setting"),
    ],
)  # fmt: skip
def test_a_refusal_of_a_setting_says_in_which_line_of_which_file_it_is(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    settings = from_file(tmp_path, name, text)
    with pytest.raises(click.UsageError) as refused:
        broker_config(BrokerConfig(), settings)
    assert refused.value.message.startswith(f"--config {tmp_path}/{name}")
    assert said in refused.value.message


def test_a_refusal_of_a_setting_of_the_name_server_says_where_it_is(tmp_path: Path) -> None:
    settings = from_file(tmp_path, "a.conf", "listenPort=x", NAMESERVER)
    with pytest.raises(click.UsageError, match=r"^--config .*a\.conf, line 1: listenPort: 'x' is"):
        nameserver_config(NameServerConfig(), settings)


def test_what_counts_of_several_sources_is_refused_as_what_it_is(tmp_path: Path) -> None:
    settings = from_file(tmp_path, "a.conf", "listenPort=1")
    settings.add_environment({"COMETMQ_LISTEN_PORT": "70001"}, KNOWN)
    with pytest.raises(
        click.UsageError, match=r"^environment: COMETMQ_LISTEN_PORT: listen_port: 7"
    ):
        broker_config(BrokerConfig(), settings)
    settings.add_pairs(["listen_port=70002"])
    with pytest.raises(click.UsageError, match=r"^--set listen_port: 70002 is not a port"):
        broker_config(BrokerConfig(), settings)
    settings.add(BROKER, {"listen_port": 70003})
    with pytest.raises(click.UsageError, match=r"^listen_port: 70003 is not a port"):
        broker_config(BrokerConfig(), settings)
