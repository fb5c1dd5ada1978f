"""`cometmq broker` and `cometmq nameserver` as processes: ready lines, refusals, signals, logs."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from tests.broker.running import send_request
from tests.broker.scraped import scrape
from tests.broker.test_up import connected, play

from cometmq.proto.bodies import TopicRouteData
from cometmq.proto.codes import RequestCode
from cometmq.proto.command import Command
from cometmq.proto.commands.route import GetRouteInfoByTopic
from cometmq.proto.host import Host

PATIENCE_SECONDS = 30
COMETMQ = [sys.executable, "-m", "cometmq.admin"]
NAMESERVER_READY = re.compile(
    r"cometmq ready nameserver=127\.0\.0\.1:(\d+) metrics=(http://127\.0\.0\.1:\d+)/metrics\n"
)
BROKER_READY = re.compile(
    r"cometmq ready broker=127\.0\.0\.1:(\d+) metrics=(http://127\.0\.0\.1:\d+)/metrics\n"
)

UP_READY = re.compile(r"cometmq ready nameserver=\S+ broker=\S+ metrics=\S+\n")

pytestmark = pytest.mark.slow


@contextmanager
def daemon(
    *words: str, ready: re.Pattern[str]
) -> Generator[tuple[subprocess.Popen[str], re.Match[str]]]:
    """Run a daemon on free ports."""
    command = [*COMETMQ, *words, "--metrics-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        found = ready.fullmatch(line := output(process).readline())
        if not found:
            process.kill()
        assert found, (line, process.communicate())
        yield process, found
    finally:
        process.kill()
        process.communicate()


def output(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def refused(*words: str) -> tuple[int, str]:
    """Run a command that should not start; return its status and its message."""
    done = subprocess.run(
        [*COMETMQ, *words], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_a_broker_and_a_name_server_find_each_other(tmp_path: Path) -> None:
    async def talk(names: Host, broker: Host) -> None:
        async with connected(broker) as peer:
            response = await peer.call(send_request("fresh", b"x"), timeout_ms=10_000)
            assert response.code == 0
        request = Command.request(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoByTopic(topic="fresh")
        )
        async with connected(names) as peer:
            while (response := await peer.call(request, timeout_ms=10_000)).code != 0:
                pass  # The name server may be told after the answer of the send.
        route = TopicRouteData.decode(response.body or b"")
        assert route.broker_datas[0].broker_name == "east-1"
        assert route.broker_datas[0].broker_addrs == {0: str(broker)}

    names_folder, folder = str(tmp_path / "names"), str(tmp_path / "store")
    with daemon("nameserver", "--port", "0", "--dir", names_folder, ready=NAMESERVER_READY) as (
        name_server,
        names,
    ):
        port = int(names[1])
        words = ["-n", f"127.0.0.1:{port}", "--dir", folder, "--port", "0", "--name", "east-1"]
        with daemon("broker", *words, ready=BROKER_READY) as (broker, found):
            play(talk(Host("127.0.0.1", port), Host("127.0.0.1", int(found[1]))))
            assert "cometmq_registered_nameservers" in scrape(f"{found[2]}/metrics")
            assert 'cometmq_nameserver_brokers{node_type="nameserver"} 1.0' in scrape(
                f"{names[2]}/metrics"
            )
            broker.send_signal(signal.SIGTERM)
            assert broker.wait(PATIENCE_SECONDS) == 0
        assert 'cometmq_nameserver_brokers{node_type="nameserver"} 0.0' in scrape(
            f"{names[2]}/metrics"
        )
        name_server.send_signal(signal.SIGINT)
        assert name_server.wait(PATIENCE_SECONDS) == 0


def test_a_name_server_alone_needs_no_other_loop(tmp_path: Path) -> None:
    with daemon("nameserver", "--port", "0", "--dir", str(tmp_path), ready=NAMESERVER_READY) as (
        process,
        _,
    ):
        maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "uvloop" not in maps


def test_flags_go_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        f"brokerName=of-the-file\nbrokerClusterName=of-the-file\nregionId=of-the-file\n"
        f"storePathRootDir={tmp_path / 'store'}\nsendMessageThreadPoolNums=4\n"
    )
    monkeypatch.setenv("COMETMQ_BROKER_NAME", "of-the-environment")
    monkeypatch.setenv("COMETMQ_CLUSTER_NAME", "of-the-environment")
    words = ["--config", str(file), "--port", "0", "--name", "of-the-flag", "--log-format", "json"]

    async def settings(broker: Host) -> str:
        async with connected(broker) as peer:
            request = Command.request(RequestCode.GET_BROKER_CONFIG)
            return bytes((await peer.call(request, timeout_ms=10_000)).body or b"").decode()

    with daemon("broker", *words, ready=BROKER_READY) as (process, found):
        told = play(settings(Host("127.0.0.1", int(found[1])))).splitlines()
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert "brokerName=of-the-flag" in told
    assert "brokerClusterName=of-the-environment" in told
    assert "regionId=of-the-file" in told
    assert "flushDiskType=ASYNC_FLUSH" in told
    logged = [json.loads(line)["message"] for line in errors.splitlines()]
    assert "settings of Apache's that have no meaning here: sendMessageThreadPoolNums" in logged


@pytest.mark.parametrize("command", ["up", "broker"])
def test_a_broker_conf_that_does_not_say_where_the_store_is_begins_none(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broker.conf").write_text("listenPort=0\n")
    monkeypatch.chdir(tmp_path)
    status, said = refused(command, "--config", "broker.conf")
    assert status == 2
    said = re.sub(r"\s+", " ", said)
    assert "broker.conf: has no storePathRootDir, and cometmq-data holds no store" in said
    assert "--dir ~/store opens that one, --dir cometmq-data begins a new one" in said
    assert [path.name for path in tmp_path.iterdir()] == ["broker.conf"]


@pytest.mark.parametrize("command", ["up", "broker", "nameserver"])
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--host", "0.0.0.0"], "--insecure"),
        (["--host", "nowhere"], "'nowhere' is not a numeric address"),
        (["--tls", "enforcing"], "--tls enforcing: TLS is not supported yet"),
        (["--set", "listen_prt=1"], "did you mean listen_port?"),
        (["--set", "listen_port"], "must be key=value"),
        (["--config", "/nonexistent.toml"], "No such file"),
        (["--metrics-port", "70000"], "70000"),
        (["--metrics-port", "of"], "'of' is neither a port nor off"),
        (["--log-level", "loud"], "loud"),
        (["--nonsense"], "--nonsense"),
    ],
)  # fmt: skip
def test_wrong_usage_is_status_2_and_says_what_is_wrong(
    command: str, words: list[str], problem: str
) -> None:
    status, said = refused(command, *words)
    assert status == 2
    assert problem in re.sub(r"\s+", " ", said)


def test_an_address_to_advertise_must_be_one(tmp_path: Path) -> None:
    words = ["broker", "--dir", str(tmp_path), "--host", "0.0.0.0", "--insecure"]
    status, said = refused(*words)
    assert status == 2
    assert "give one, as in --advertise" in re.sub(r"\s+", " ", said)
    status, said = refused(*words, "--advertise", "no.such.host.invalid")
    assert status == 2
    assert "--advertise no.such.host.invalid: N" in said  # Without an error number.


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--name", "a/b"], "broker_name: 'a/b' cannot be the name of the topic"),
        (["--cluster", ".."], "cluster_name: '..' cannot be the name of the topic"),
        (["-n", "foo"], "nameservers: address 'foo' has no port; write host:port, such as"),
    ],
)
def test_a_name_or_address_that_cannot_be_is_refused_before_there_is_a_store(
    tmp_path: Path, words: list[str], problem: str
) -> None:
    status, said = refused("broker", "--dir", str(tmp_path / "store"), *words)
    assert status == 2
    assert problem in re.sub(r"\s+", " ", said)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("command", ["up", "broker", "nameserver"])
def test_a_host_that_is_not_here_is_told_as_the_mistake_that_it_is(
    tmp_path: Path, command: str
) -> None:
    words = [] if command == "nameserver" else ["--dir", str(tmp_path / "store")]
    status, said = refused(command, "--host", "203.0.113.1", "--insecure", *words)
    assert status == 1
    assert "the address is not one of this machine's; give one that is with --host" in said
    assert "--metrics-port" not in said
    assert "another port" not in said


def test_a_store_that_is_open_is_status_1_and_names_who_has_it(tmp_path: Path) -> None:
    words = ["broker", "--dir", str(tmp_path), "--port", "0"]
    with daemon(*words, ready=BROKER_READY) as (process, _):
        status, said = refused(*words, "--metrics-port", "0")
    assert status == 1
    assert f"(pid {process.pid})" in said


def test_a_metrics_port_in_use_is_refused_where_it_was_asked_for(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        words = ["broker", "--dir", str(tmp_path), "--port", "0", "--metrics-port", port]
        status, said = refused(*words)
    assert status == 1
    assert f"cannot listen on 127.0.0.1:{port}: the port is in use" in said


@pytest.mark.parametrize(
    ("command", "option", "said_options"),
    [
        ("up", "--nameserver-port", "--broker-port or --nameserver-port"),
        ("nameserver", "--port", "--port"),
    ],
)
def test_a_port_in_use_is_refused_with_the_options_that_take_another(
    tmp_path: Path, command: str, option: str, said_options: str
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        where = ["--dir", str(tmp_path), "--metrics-port", "off"]
        status, said = refused(command, *where, option, port)
    assert status == 1
    assert said.endswith(f"; stop that, or choose another port with {said_options}\n")


@pytest.mark.parametrize("command", ["up", "broker", "nameserver"])
def test_a_metrics_port_that_is_off_is_none(tmp_path: Path, command: str) -> None:
    ports = {
        "up": ["--broker-port", "0", "--nameserver-port", "0"],
        "broker": ["--port", "0"],
        "nameserver": ["--port", "0"],
    }
    words = [command, *ports[command], "--dir", str(tmp_path), "--metrics-port", "off"]
    start = subprocess.Popen([*COMETMQ, *words], stdout=subprocess.PIPE, text=True)
    with start as process:
        assert process.stdout is not None
        try:
            ready = process.stdout.readline()
        finally:
            process.terminate()
    assert ready.startswith("cometmq ready ")
    assert "metrics=" not in ready


def test_up_says_where_its_store_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with daemon("up", "--broker-port", "0", "--nameserver-port", "0", ready=UP_READY) as (up, _):
        up.terminate()
        _, errors = up.communicate(timeout=PATIENCE_SECONDS)
    assert f"stays in the store, {tmp_path}/cometmq-data." in errors


def test_a_tls_hello_is_logged_and_closed(tmp_path: Path) -> None:
    words = ["broker", "--dir", str(tmp_path), "--port", "0"]
    with daemon(*words, ready=BROKER_READY) as (process, found):
        with socket.create_connection(("127.0.0.1", int(found[1])), PATIENCE_SECONDS) as client:
            client.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
            assert client.recv(1) == b""
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert "begins with a TLS handshake, and TLS is not set up here" in errors
    assert "Traceback" not in errors


def test_a_broker_without_name_servers_is_warned_of(tmp_path: Path) -> None:
    words = ["broker", "--dir", str(tmp_path), "--port", "0"]
    with daemon(*words, ready=BROKER_READY) as (process, _):
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert "no name server (-n): clients will not find this broker" in errors
