"""The broker's second port, its first minus two, for Java clients whose VIP channel is on."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.interop.apache_broker import free_ports
from tests.interop.apache_java import class_path, one_at_a_time, required
from tests.interop.target import running_up

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = [pytest.mark.slow, pytest.mark.long]

JAVA = Path(__file__).parent / "java"
SCENARIOS = ("send_sync", "send_batch", "send_oneway", "consume_pushed")
VIP = "-Dcom.rocketmq.sendMessageWithVIPChannel=true"
LISTENING = "0A"


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("java")
    path = class_path("5.5.0", JAVA / "pom.xml")
    sources = [str(source) for source in JAVA.glob("*.java")]
    compiler = [required("javac"), "-nowarn", "-d", str(folder), "-cp", path, *sources]
    subprocess.run(compiler, check=True, capture_output=True, timeout=300)
    return [required("java"), "-Xmx512m", VIP, "-cp", f"{folder}:{path}", "Interop"]


def connections_to(port: int) -> int:
    """Count the connections that a port has or just had: the kernel keeps those for a minute."""
    count = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, remote, state = line.split()[:4]
            ports = {int(end.rpartition(":")[2], 16) for end in (local, remote)}
            count += port in ports and state != LISTENING
    return count


def test_a_java_program_with_its_vip_channel_on_does_its_work(
    java: Sequence[str], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        with one_at_a_time():
            port, _ = free_ports()
            target = stack.enter_context(running_up(tmp_path, broker_port=port))
        assert target.broker == f"127.0.0.1:{port}"
        before = connections_to(port - 2)
        for scenario in SCENARIOS:
            played = subprocess.run(
                [*java, target.nameserver, scenario],
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert f"PASS {scenario}" in played.stdout, played.stdout + played.stderr
        assert connections_to(port - 2) > before  # Otherwise the channel was not on.
