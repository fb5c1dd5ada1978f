"""`cometmq send`, `consume`, `tail` and `topic` against a broker on real sockets."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from tests.client.running import Servers, play
from tests.ending import ENDING

from cometmq.admin.program import program
from cometmq.net import Limits

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interop.target import Target

ENDLESS = """
import sys, anyio
from cometmq.admin.commands.with_client import until_stopped
from cometmq.net import ending_signals

ending_signals.ONE_REQUEST_SECONDS = float(sys.argv[1])

async def wait():
    async with until_stopped():
        print("begins", flush=True)
        await anyio.sleep_forever()
    print("ends", flush=True)
    await anyio.sleep_forever()

anyio.run(wait)
"""
"""A program that takes for ever to clean up."""

UNREAD = """
import sys, anyio
from cometmq.admin.commands.with_client import until_stopped
from cometmq.net import ending_signals

ending_signals.ONE_REQUEST_SECONDS = 0.1

async def show():
    async with until_stopped():
        print("begins", flush=True)
        print("much" * 1_000_000, flush=True)

anyio.run(show)
"""
"""A program that hangs while it writes its output."""


class Terminal:
    """Runs commands against the servers of a test."""

    def __init__(self, servers: Servers | Target) -> None:
        self._nameserver = servers.nameserver

    def run(self, *arguments: str, given: str | bytes | None = None, status: int = 0) -> Result:
        environment = {"NAMESRV_ADDR": self._nameserver}
        result = CliRunner().invoke(program, arguments, input=given, env=environment)
        assert result.exit_code == status, (result.output, result.exception)
        return result

    def lines(self, *arguments: str, given: str | None = None) -> list[str]:
        return self.run(*arguments, given=given).stdout.splitlines()

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)


def test_what_is_sent_is_consumed_once_and_seen_by_tail_always(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        command = ["send", "orders", "o-17 paid", "--key", "o-17", "--tag", "paid"]
        receipt = terminal.json(*command, "--property", "country=AT")
        assert (receipt["topic"], receipt["offset"], receipt["status"]) == ("orders", 0, "ok")
        assert "orders@broker-a:" in terminal.lines("send", "orders", "o-18")[0]

        tailed = terminal.lines("tail", "orders", "--no-follow")
        assert sorted(line.split("  ")[-1] for line in tailed) == ["o-17 paid", "o-18"]
        assert all(re.match(r"\d\d:\d\d:\d\dZ  ", line) for line in tailed)
        (message,) = map(
            json.loads, terminal.lines("tail", "orders", "--filter", "paid", "-c1", "--json")
        )
        assert message["id"] == receipt["id"]
        assert (message["keys"], message["tag"], message["body"]) == (["o-17"], "paid", "o-17 paid")
        assert message["properties"] == {"country": "AT"}

        consumed = terminal.lines("consume", "orders", "--start", "first", "-c", "2")
        assert sorted(line.split("  ")[-1] for line in consumed) == ["o-17 paid", "o-18"]
        again = terminal.run("consume", "orders", "--idle", "0.1")
        assert again.stdout == ""
        assert again.stderr.endswith("0 messages consumed as cometmq-cli\n")
        assert len(terminal.lines("tail", "orders", "-c", "2")) == 2

    play(tmp_path, scenario)


@pytest.mark.parametrize("number", ENDING)
def test_what_is_shown_is_consumed_however_that_is_ended(tmp_path: Path, number: int) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        for body in ("o-17", "o-18"):
            terminal.run("send", "orders", body)
        arguments = ["consume", "orders", "-n", servers.nameserver, "--start", "first"]
        with subprocess.Popen(
            [sys.executable, "-m", "cometmq.admin", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as consuming:
            assert consuming.stdout is not None
            shown = [consuming.stdout.readline() for _ in range(2)]
            consuming.send_signal(number)
            rest, said = consuming.communicate(timeout=60)
        assert ["o-1" in line for line in shown] == [True, True]
        assert (rest, consuming.returncode) == ("", 0)
        assert said.endswith("2 messages consumed as cometmq-cli\n")
        assert terminal.run("consume", "orders", "--idle", "0.1").stdout == ""

    play(tmp_path, scenario)


@pytest.mark.parametrize("number", ENDING)
@pytest.mark.parametrize(("seconds", "ends"), [(0.0, True), (1000.0, False)])
def test_a_second_signal_ends_a_command_at_once_unless_it_comes_with_the_first(
    seconds: float, ends: bool, number: int
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(seconds)], stdout=subprocess.PIPE, text=True
    ) as asked:
        assert asked.stdout is not None
        for line in ("begins\n", "ends\n"):
            assert asked.stdout.readline() == line
            asked.send_signal(number)
        with nullcontext() if ends else pytest.raises(subprocess.TimeoutExpired):
            assert asked.wait(60.0 if ends else 0.3) == -number
        asked.kill()


@pytest.mark.parametrize("number", ENDING)
def test_so_it_does_where_what_is_shown_goes_into_a_pipe_that_nobody_reads(number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", UNREAD], stdout=subprocess.PIPE, text=True
    ) as asked:
        assert asked.stdout is not None
        assert asked.stdout.readline() == "begins\n"
        time.sleep(0.2)
        asked.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            asked.wait(0.3)
        asked.send_signal(number)
        assert asked.wait(60) == -number


@pytest.mark.parametrize("command", ["consume", "tail"])
def test_who_stops_reading_ends_the_command_and_consumes_nothing_unseen(
    tmp_path: Path, command: str
) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        terminal.run("send", "orders", "-", "--lines", given="1\n2\n3")
        reading, writing = os.pipe()
        os.close(reading)  # As `| head` does after its last line.
        options = ["--group", "g", "--start", "first"] if command == "consume" else []
        ended = subprocess.run(
            [sys.executable, "-m", "cometmq.admin", command, "orders", *options],
            env=os.environ | {"NAMESRV_ADDR": servers.nameserver},
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
        os.close(writing)
        assert (ended.returncode, ended.stderr) == (1, "")
        if command == "consume":
            seen = terminal.lines("consume", "orders", "--group", "g", "-c", "3")
            assert sorted(line.split("  ")[-1] for line in seen) == ["1", "2", "3"]

    play(tmp_path, scenario)


@pytest.mark.parametrize("command", ["consume", "tail"])
def test_where_nothing_can_be_printed_that_is_said_and_nothing_consumed(
    tmp_path: Path, command: str
) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        terminal.run("send", "orders", "-", "--lines", given="1\n2\n3")
        options = ["--group", "g", "--start", "first"] if command == "consume" else []
        with open("/dev/full", "w") as full:  # noqa: PTH123  # A device.
            ended = subprocess.run(
                [sys.executable, "-m", "cometmq.admin", command, "orders", *options],
                env=os.environ | {"NAMESRV_ADDR": servers.nameserver},
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
            )
        said = "Error: standard input or output: No space left on device\n"
        assert (ended.returncode, ended.stderr) == (1, said)
        if command == "consume":
            assert len(terminal.lines("consume", "orders", "--group", "g", "-c", "3")) == 3

    play(tmp_path, scenario)


def test_without_standard_output_nothing_is_consumed_unseen(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        terminal.run("send", "orders", "1")
        command = '"$0" -m cometmq.admin consume orders -g g --start first -c1 >&-'
        environment = os.environ | {"NAMESRV_ADDR": servers.nameserver}
        ended = subprocess.run(
            ["sh", "-c", command, sys.executable],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
        assert ended.returncode == 2
        assert "standard output is closed" in ended.stderr
        assert len(terminal.lines("consume", "orders", "-g", "g", "--start", "first", "-c1")) == 1

    play(tmp_path, scenario)


def test_standard_input_is_one_message_or_a_message_a_line(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        terminal.run("send", "blobs", "-", given=b"\x00\xff")
        terminal.run("send", "bytes", "a\udcff")  # As Python decodes bytes that are no text.
        (message,) = map(json.loads, terminal.lines("tail", "bytes", "-c1", "--json"))
        assert message["body_base64"] == "Yf8="
        (line,) = terminal.lines("tail", "blobs", "--no-follow")
        assert line.endswith(repr(b"\x00\xff"))
        (message,) = map(json.loads, terminal.lines("tail", "blobs", "-c1", "--json"))
        assert message["body_base64"] == "AP8="
        numbers = "\n".join(map(str, range(1200)))
        assert terminal.lines("send", "numbers", "-", "--lines", given=numbers) == [
            "1200 messages sent"
        ]
        shown = terminal.lines("tail", "numbers", "--no-follow", "--last", "1200")
        assert sorted(int(line.split("  ")[-1]) for line in shown) == list(range(1200))

    play(tmp_path, scenario)


def test_what_a_terminal_would_obey_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        said = ["--tag", "t\x1b[2J", "--key", "k\x1b[2J", "--property", "p=\x1b[2J"]
        identifier = terminal.json("send", "orders", "a\x1b[2Jb\nc", *said)["id"]
        assert terminal.lines("tail", "orders", "--no-follow")[0].endswith(
            "  [t\\x1b[2J]  k\\x1b[2J  a\\x1b[2Jb\\nc"
        )
        assert "\x1b" not in terminal.run("message", "show", identifier).stdout

    play(tmp_path, scenario)


def test_a_long_body_is_cut_for_a_terminal_and_whole_elsewhere(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        body = "x" * 5000
        identifier = terminal.json("send", "orders", body, "--key", "k")["id"]
        assert terminal.lines("consume", "orders", "--start", "first", "-c1")[0].endswith(body)
        cut = f"{'x' * 7} ... (5000 bytes)"
        for command in (["tail", "orders", "-c1"], ["message", "find", "orders", "k"]):
            assert terminal.lines(*command)[0].endswith(body)
            assert terminal.lines(*command, "--cut", "7")[0].endswith(f"  {cut}")
        assert terminal.lines("message", "show", identifier)[-1].endswith(body)
        ours, theirs = os.openpty()
        tail = [sys.executable, "-m", "cometmq.admin", "tail", "orders", "-c1"]
        environment = os.environ | {"NAMESRV_ADDR": servers.nameserver}
        for options, shown in ([], f"{'x' * 1000} ... (5000 bytes)"), (["--cut", "7"], cut):
            subprocess.run(
                [*tail, *options], env=environment, stdout=theirs, timeout=60, check=True
            )
            assert os.read(ours, 9999).decode().endswith(f"  {shown}\r\n")
        os.close(ours)
        os.close(theirs)

    play(tmp_path, scenario)


def test_topics_are_made_listed_looked_at_and_deleted(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        made = terminal.lines("topic", "create", "orders", "-q", "3")
        assert made == ["orders: made on broker-a"]
        terminal.run("send", "orders", "x")
        assert terminal.lines("topic", "list") == ["orders"]
        kinds = {each["topic"]: each["kind"] for each in terminal.json("topic", "list", "--all")}
        assert kinds["TBW102"] == kinds["broker-a"] == kinds["DefaultCluster"] == "system"
        (route,) = terminal.json("topic", "route", "orders")
        assert (route["broker"], route["write_queues"], route["permission"]) == (
            "broker-a",
            3,
            "rw",
        )
        assert route["addresses"] == {"0": servers.broker}
        status = terminal.json("topic", "status", "orders")
        assert [each["queue"] for each in status] == [0, 1, 2]
        assert sum(each["messages"] for each in status) == 1
        assert terminal.lines("topic", "status", "orders")[-1] == "1 message"
        refused = terminal.run("topic", "delete", "orders", given="n\n", status=1)
        assert "with its 1 message?" in refused.output
        assert terminal.lines("topic", "delete", "orders", "--yes") == ["orders is deleted"]
        assert terminal.lines("topic", "list") == []
        terminal.run("send", "orders", "x")
        assert terminal.json("topic", "delete", "orders", "-y") == {
            "topic": "orders",
            "messages": 1,
        }

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["topic", "route", "nothing"], 1, "no broker serves the topic 'nothing'"),
        (["tail", "nothing"], 1, "no broker serves the topic 'nothing'"),
        (["send", "a b", "x"], 2, "letters, digits"),
        (["send", "orders", ""], 2, "empty"),
        (["send", "orders", "x", "--property", "a"], 2, "write NAME=VALUE"),
        (
            ["send", "orders", "x", "--lines", "--delay", "1"],
            2,
            "which --lines sends, cannot be delayed",
        ),
        (["consume", "orders", "--start", "soon"], 2, "'soon' is neither first, last, milli"),
        (["message", "find", "orders", "\udcff"], 2, r"'\udcff' is not text in UTF-8"),
        (["send", "orders", "x", "--key", "\udcff"], 2, r"'\udcff' is not text in UTF-8"),
        (["topic", "list", "-n", "\udcff:1"], 2, r"'\udcff:1' is not text in UTF-8"),
        (["message", "find", "orders", ""], 2, "key: must not be empty"),
        (["offset", "set", "g", "orders", "broker-a", "0", "9" * 20], 2, "from 0 to 92233"),
        (["consume", "orders", "-g", "a b"], 2, "group"),
        (["consume", "orders", "--filter", "paid, refunded"], 2, "'paid, refunded' is not a tag"),
        (["consume", "orders", "--filter", "paid", "--sql", "a = 1"], 2, "give one"),
        (["tail", "orders", "--filter", "*", "--sql", "a = 1"], 2, "give one"),
        (["dlq", "redrive", "g", "--filter", "paid", "--sql", "a = 1"], 2, "give one"),
        (["consume", "orders", "--start", "17"], 2, "17 is not a time"),
        (["topic", "create", "orders", "-q", "0"], 2, "--queues=0"),
        (
            ["group", "create", "g", "--max-retries", "-1"],
            2,
            "--max-retries=-1: must be at least 0",
        ),
        (["send", "orders", "x", "--property", "KEYS=a"], 2, "--property: 'KEYS' is reserved"),
        (["send", "orders", "x", "--property", "KEYS=a"], 2, "; use --key\n"),
        (["send", "orders", "x", "--property", "DELAY=a"], 2, "; use --delay\n"),
        (["send", "orders", "x", "--key", "a b"], 2, "--key 'a b': must be a str"),
        (["send", "orders", "x", "--key", "a b"], 2, "; --key may be repeated\n"),
        (["send", "orders", "x", "--delay", "nan"], 2, "--delay=nan: must be a number of seconds"),
        (
            ["send", "orders", "x", "--delay", "1e308"],
            2,
            "--delay=1e+308: must be a number of seconds",
        ),
        (
            ["send", "orders", "x", "--timeout", "1e308"],
            2,
            "--timeout=1e+308: must be a number of seconds",
        ),
        (["send", "orders", "x", "--tls"], 1, ": the connection ended\nIt accepted the connection"),
        (["send", "orders", "x", "--sharding-key", ""], 2, "--sharding-key: must not be empty"),
        (["consume", "orders", "--filter", "a LIKE 'x'"], 2, "give it as --sql \"a LIKE 'x'\"\n"),
        (
            ["topic", "create", "orders", "--broker", "b"],
            2,
            "'b' is not registered: the name servers know broker-a\n",
        ),
    ],
)
def test_what_goes_wrong_is_said_in_a_line(
    tmp_path: Path, arguments: list[str], status: int, said: str
) -> None:
    def scenario(servers: Servers) -> None:
        result = Terminal(servers).run(*arguments, status=status)
        assert said in result.stderr
        assert "Traceback" not in result.output

    play(tmp_path, scenario)


def test_a_consume_that_could_read_nothing_fails_and_says_why(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        terminal.run("topic", "create", "orders")
        consume = ("consume", "orders", "-g", "billing", "--idle", "0.5")
        wrong = terminal.run("consume", "ordrs", "--idle", "0.1", status=1)
        assert wrong.stderr == (
            "Error: no broker serves the topic 'ordrs'; did you mean 'orders'?\n"
        )
        terminal.run("topic", "create", "bills", "--permission", "w")
        for command in (["consume", "bills", "--idle", "0.1"], ["tail", "bills"]):
            said = terminal.run(*command, status=1).stderr
            assert "bills may not be read: its permission is w; `cometmq topic create" in said
        terminal.run("group", "create", "billing", "--disabled")
        assert "the group billing is disabled" in terminal.run(*consume, status=1).stderr
        terminal.run("group", "create", "billing", "--enabled")
        terminal.run(*consume)
        servers.stop("broker")
        assert "no broker is registered with" in terminal.run(*consume, status=1).stderr
        servers.stop("nameserver")
        said = terminal.run(*consume, "--timeout", "0.3", status=1).stderr
        assert "no name server answers within 0.3 s" in said

    play(tmp_path, scenario)


def test_a_consume_of_a_group_that_brokers_do_not_make_says_how_to_make_it(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        terminal.run("topic", "create", "orders")
        said = terminal.run("consume", "orders", "-g", "billing", "--idle", "0.5", status=1).stderr
        assert "no broker knows the group billing yet; `cometmq group create billing`" in said

    play(tmp_path, scenario, auto_create_subscription_group=False)


def test_a_consume_may_begin_before_its_topic_is_there(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        with subprocess.Popen(
            [sys.executable, "-m", "cometmq.admin", "consume", "orders", "-c", "1", "-g", "g"],
            env=os.environ | {"NAMESRV_ADDR": servers.nameserver},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as consumer:
            assert consumer.stderr is not None
            said = consumer.stderr.readline()
            assert said.startswith("no broker serves the topic 'orders'")
            assert said.endswith("Waiting for it.\n")
            Terminal(servers).run("send", "orders", "x")
            output, said = consumer.communicate(timeout=60)
            assert output.endswith("  x\n")
            assert said == "1 message consumed as g\n"  # Nothing more about the missing topic.

    play(tmp_path, scenario)


def test_a_body_that_is_too_large_is_told_without_settings_that_no_option_has(
    tmp_path: Path,
) -> None:
    def scenario(servers: Servers) -> None:
        said = Terminal(servers).run("send", "orders", "-", given="x" * (5 << 20), status=2).stderr
        assert "5242880 bytes, more than 4194304, the most that is sent: send it in parts" in said
        assert "setting" not in said

    play(tmp_path, scenario)


def test_a_start_that_counts_for_new_groups_only_says_so(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        terminal.run("send", "orders", "x")
        consume = ("consume", "orders", "-g", "billing", "--start", "first")
        assert "goes on where it was" not in terminal.run(*consume, "-c", "1").stderr
        terminal.run("send", "orders", "y")
        again = terminal.run(*consume, "-c", "1").stderr
        assert "The group billing exists: it goes on where it was" in again
        assert "`cometmq offset reset billing orders --to first` moves it" in again

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    "arguments",
    [
        ["send", "orders", "x"],
        ["topic", "list"],
        ["topic", "status", "orders"],
        ["tail", "orders"],
        ["consume", "orders", "--sql", "a = 1"],
        ["offset", "reset", "billing", "orders", "--to", "first"],
    ],
)
def test_where_no_broker_is_registered_no_topic_is_blamed(
    tmp_path: Path, arguments: list[str]
) -> None:
    def scenario(servers: Servers) -> None:
        servers.stop("broker")
        said = Terminal(servers).run(*arguments, status=1).stderr
        assert "no broker is registered with" in said
        assert "Traceback" not in said
        assert "has it been created" not in said

    play(tmp_path, scenario)


def test_a_topic_that_is_misspelt_is_told_from_one_of_a_near_name(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        terminal = Terminal(servers)
        terminal.run("topic", "create", "orders")
        said = terminal.run("tail", "ordrs", status=1).stderr
        assert said == "Error: no broker serves the topic 'ordrs'; did you mean 'orders'?\n"
        said = terminal.run("topic", "status", "bills", status=1).stderr
        assert said == "Error: no broker serves the topic 'bills'; `cometmq topic list` shows all\n"

    play(tmp_path, scenario)


def test_a_broker_is_no_name_server(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        for command in (["send", "orders", "x"], ["topic", "list"]):
            result = Terminal(servers).run(*command, "-n", servers.broker, status=2)
            assert f"{servers.broker} answers, but" in result.stderr
            assert "looks like a broker" in result.stderr

    play(tmp_path, scenario)


def test_a_broker_that_lets_nobody_in_is_named_once_and_its_limit_with_it(tmp_path: Path) -> None:
    def scenario(servers: Servers) -> None:
        with socket.create_connection(("127.0.0.1", servers.port_of("broker"))):
            said = Terminal(servers).run("send", "orders", "x", status=1).stderr
        assert said.startswith(f"Error: {servers.broker}: the connection ended: ")
        assert said.count(servers.broker) == 1
        assert "`cometmq up`" not in said
        assert "connections_max" in said

    play(tmp_path, scenario, limits=Limits(connections_max=1))


def test_a_web_server_is_no_name_server_and_that_is_said_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        address = "{}:{}".format(*listening.getsockname())
        ended = subprocess.run(
            [
                sys.executable,
                "-m",
                "cometmq.admin",
                "topic",
                "list",
                "-n",
                address,
                "--timeout",
                "1",
            ],
            capture_output=True,
            text=True,
            timeout=60,
        )
        listening.shutdown(socket.SHUT_RDWR)
    why = "the connection begins with an HTTP answer: a web server or a proxy listens there\n"
    logged, error, hint = ended.stderr.splitlines(keepends=True)
    assert logged == f"{address}: dropped: {why}"
    assert error.endswith(why)
    assert hint.startswith("Something else listens there")


def test_without_a_server_it_says_how_to_start_one() -> None:
    command = ["topic", "list", "-n", "127.0.0.1:1", "--timeout", "0.2"]
    result = CliRunner().invoke(program, command)
    assert result.exit_code == 1
    assert "127.0.0.1:1: Connection refused" in result.stderr
    assert "`cometmq up`" in result.stderr


def test_that_no_name_server_is_given_is_told_with_the_option_for_it() -> None:
    result = CliRunner().invoke(program, ["topic", "list", "-n", ""])
    assert result.exit_code == 2
    assert "give one, -n HOST:PORT, or set NAMESRV_ADDR" in result.stderr


def test_a_list_of_commands_cuts_no_sentence_on_a_usual_terminal() -> None:
    def walk(words: tuple[str, ...]) -> None:
        shown = CliRunner().invoke(program, [*words, "--help"], terminal_width=80).stdout
        _, _, listed = shown.partition("Commands:\n")
        for line in listed.splitlines():
            assert not line.endswith("..."), (words, line)
            if len(words) < 1:
                walk((*words, line.split()[0]))

    walk(())


@pytest.mark.parametrize(
    "command", ["send", "consume", "tail", "topic", "topic create", "settings set"]
)
def test_help_shows_how(command: str) -> None:
    result = CliRunner().invoke(program, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.stdout
