"""Jobs and clusters that answer only signed requests over TLS."""

from __future__ import annotations

import base64
import hmac
import socket
import ssl
import time
from contextlib import suppress
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from tests.pipeline.guarded import ACCESS_KEY, Guarded, guarded, make_certificate

from cometmq.admin.program import program
from cometmq.pipeline import command, wire
from cometmq.pipeline.cluster import Cluster, Queue
from cometmq.pipeline.errors import ConnectionLostError, OptionError, UntrustedError
from cometmq.pipeline.fetching import Pulling, chunks
from cometmq.pipeline.jobs import JOBS
from cometmq.pipeline.jobs.credentials import Credentials
from cometmq.pipeline.jobs.dlq import DlqSettings
from cometmq.pipeline.jobs.job import Job
from cometmq.pipeline.jobs.report import Report
from cometmq.pipeline.lanes import Lane, Sending
from cometmq.pipeline.planning import Range
from cometmq.pipeline.wire import Settings, Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.testing import Cluster as Running

pytestmark = pytest.mark.usefixtures("no_connection_is_kept")

SECRET = "hush-hush"


@pytest.fixture
def there(rocketmq_session: Running, certificate: Path) -> Iterator[Guarded]:
    rocketmq_session.admin.create_topic("there", queues=1)
    rocketmq_session.admin.create_topic("%DLQ%there", queues=1)
    with guarded(rocketmq_session, certificate, SECRET) as found:
        yield found


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The settings with which commands would run their jobs."""
    found: list[Any] = []

    def without_spark(job: Job, settings: Any, *_: object) -> Report:
        found.append(settings)
        return Report(job.name)

    monkeypatch.setattr(command, "run_in_session", without_spark)
    return found


LINES = (
    "archive --topic there --to a",
    "replay --from-dir a --to-topic t",
    "transform --topic there --sql SELECT --to-topic t --checkpoint c",
    "aggregate --topic there --to-topic t --checkpoint c",
    "mirror --topic there --prefix x- --to-nameserver UNGUARDED --checkpoint c",
    "dlq --group there",
    "latency --topic there",
)


@pytest.mark.parametrize("line", LINES)
def test_what_is_looked_for_before_spark_is_started_is_asked_for_with_credentials(
    there: Guarded, settings: list[Any], monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("COMETMQ_SECRET_KEY", SECRET)
    line = line.replace("UNGUARDED", there.cluster.nameserver)
    done = CliRunner().invoke(program, ["pipeline", *line.split(), *there.arguments()])
    assert done.exit_code == 0, done.output
    assert [each.credentials for each in settings] == [there.credentials]
    assert there.refused == []
    assert there.codes


def test_each_side_of_a_comparison_has_credentials_of_its_own(
    there: Guarded, settings: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    arguments = [f"--right-secret-key-file={tmp_path / 'secret'}", *there.arguments("right-")[1:]]
    arguments += ["--left", f"topic:there@{there.cluster.nameserver}"]
    arguments += ["--right", f"topic:there@{there.nameserver}"]
    done = CliRunner().invoke(program, ["pipeline", "reconcile", *arguments])
    assert done.exit_code == 0, done.output
    (found,) = settings
    assert (found.left_credentials, found.right_credentials) == (Credentials(), there.credentials)
    assert there.codes
    assert there.refused == []


def test_another_secret_is_refused_and_shown_nowhere(
    there: Guarded, settings: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMETMQ_SECRET_KEY", "another-secret")
    arguments = ["archive", "--topic", "there", "--to", "a", *there.arguments()]
    done = CliRunner().invoke(program, ["pipeline", *arguments, "--progress", "json"])
    assert done.exit_code == 3, done.output
    assert "refused with code 16: no" in done.stderr
    assert "another-secret" not in done.output
    assert settings == []


@pytest.mark.parametrize("line", LINES)
def test_another_secret_is_refused_before_spark_is_started(
    there: Guarded, settings: list[Any], monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """For `mirror`, that of the cluster that is written to. Apache's name servers check none."""
    given, variable = there.arguments(), "COMETMQ_SECRET_KEY"
    if line.startswith("mirror"):
        line, variable = line.replace("UNGUARDED", there.nameserver), "COMETMQ_TO_SECRET_KEY"
        given = [f"--nameserver={there.cluster.nameserver}", *there.arguments("to-")[1:]]
    monkeypatch.setenv(variable, "another")
    monkeypatch.setattr(there.fronts[0], "_secret", "another")
    done = CliRunner().invoke(program, ["pipeline", *line.split(), *given])
    assert done.exit_code == 3, done.output
    refused = f"{there.fronts[1].address} refused with code 16: no\n"
    hint = "If started again, it is refused again, until its credentials change or may do more.\n"
    assert done.stderr.endswith(refused + hint)
    assert settings == []


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """A certificate by which that of the fronts cannot be verified."""
    return make_certificate(tmp_path)


def test_a_certificate_that_is_refused_ends_a_job_at_once(
    there: Guarded, settings: list[Any], stranger: Path
) -> None:
    begun = time.monotonic()
    arguments = ["archive", "--topic", "there", "--to", "a", "--tls", f"--tls-ca={stranger}"]
    done = CliRunner().invoke(program, ["pipeline", *arguments, "-n", there.nameserver])
    assert done.exit_code == 2, done.output
    said = f"the certificate of {there.nameserver} is refused: self-signed certificate; --tls-ca"
    assert said in done.stderr
    assert f", now {stranger}, must" in done.stderr
    assert time.monotonic() - begun < 5  # Retries take six seconds and more.
    assert settings == []


def test_a_server_that_speaks_no_tls_is_told_so(
    there: Guarded, settings: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again, as a server that is just starting may close connections, too."""

    def at_once(_: float) -> None:
        pass

    plain = there.cluster.nameserver
    monkeypatch.setattr("cometmq.pipeline.retrying.time.sleep", at_once)
    done = CliRunner().invoke(
        program, ["pipeline", "archive", "--topic", "there", "--to", "a", "--tls", "-n", plain]
    )
    assert done.exit_code == 3, done.output
    assert f"no TLS connection to {plain}, which may not speak TLS: " in done.stderr
    assert settings == []


def test_a_name_server_whose_certificate_is_refused_is_asked_again_while_another_is_away(
    there: Guarded, stranger: Path
) -> None:
    """The other one may have a certificate that is trusted."""
    both = Cluster([there.nameserver, "127.0.0.1:1"], Settings(tls=True, tls_ca=str(stranger)))
    with pytest.raises(ConnectionLostError, match=r"no name server answers: .* is refused"):
        both.brokers()


def test_a_task_does_not_ask_again_whose_certificate_is_refused(
    there: Guarded, stranger: Path
) -> None:
    broker = there.fronts[1].address
    how = Pulling(Settings(tls=True, tls_ca=str(stranger)), retry_interval_ms=60_000)
    wanted = Range(Queue("there", "broker-a", 0), broker, 0, 1)
    with pytest.raises(UntrustedError, match=f"the certificate of {broker} is refused"):
        list(chunks([wanted], how))
    lane = Lane(broker, Sending(how.settings, retry_interval_ms=60_000))
    with pytest.raises(UntrustedError):
        assert lane.speaks_cometmq


def test_secrets_are_not_shown_by_settings(there: Guarded) -> None:
    found = DlqSettings(nameserver="h:1", group="g", credentials=there.credentials)
    assert SECRET not in repr(found)
    assert ACCESS_KEY in repr(found)


@pytest.mark.parametrize("given", [None, {"access_key": ACCESS_KEY, "secret_key": SECRET}])
def test_credentials_of_another_type_are_refused_without_what_they_say(given: Any) -> None:
    with pytest.raises(OptionError) as refused:
        DlqSettings(nameserver="h:1", group="g", credentials=given)
    kind = type(given).__name__
    assert str(refused.value) == f"credentials: must be Credentials, not {kind}"


@pytest.mark.parametrize("name", sorted(JOBS))
def test_each_cluster_of_a_job_has_its_credentials(name: str) -> None:
    job: Job = import_module(JOBS[name]).JOB
    names = {each.name for each in fields(job.settings)}
    asked = {name.removesuffix("nameserver") for name in names if name.endswith("nameserver")}
    asked |= {f"{name}_" for name in names & {"left", "right"}}
    assert {f"{each}credentials" for each in asked} == {n for n in names if "credentials" in n}
    done = CliRunner().invoke(program, ["pipeline", name, "--help"])
    for each in asked:
        option = each.replace("_", "-")
        for part in ("access-key", "secret-key-file", "tls", "tls-ca"):
            assert f"--{option}{part}" in done.output
        assert f"COMETMQ_{each.upper()}SECRET_KEY" in " ".join(done.output.split())
    assert "secret-key " not in done.output  # Other users would see it.


MISTAKES = {
    "--access-key me": "secret-key-file: is missing, but --access-key is set",
    "--tls-ca there.pem": "tls-ca: needs tls; without it nothing is encrypted",
    "--tls --tls-ca no-such-file": "tls-ca: no-such-file: no such file",
    "--tls --tls-ca /bin/sh": "/bin/sh: no PEM certificates in it",
    "--secret-key-file no-such-file": "no-such-file: No such file",
}


@pytest.mark.parametrize("given", MISTAKES)
def test_credentials_that_cannot_be_are_refused(given: str) -> None:
    done = CliRunner().invoke(program, ["pipeline", *f"dlq --group g {given}".split()])
    assert done.exit_code == 2, done.output
    assert MISTAKES[given] in done.output


VARIABLES = {
    "dlq --group g": ("COMETMQ_SECRET_KEY", "access-key: is missing, but COMETMQ_SECRET_KEY is"),
    "latency --topic t": ("COMETMQ_ACCESS_KEY", "secret-key-file: is missing, but COMETMQ_ACCESS"),
    "reconcile --left store:a --right store:b": (
        "COMETMQ_LEFT_SECRET_KEY",
        "left-access-key: is missing, but COMETMQ_LEFT_SECRET_KEY is set; give both, or none",
    ),
    "mirror --topic t --to-nameserver h:1 --checkpoint c": (
        "COMETMQ_TO_ACCESS_KEY",
        "to-secret-key-file: is missing, but COMETMQ_TO_ACCESS_KEY is set; give both, or none",
    ),
}


@pytest.mark.parametrize("given", VARIABLES)
def test_half_a_credential_is_told_where_it_was_said(given: str) -> None:
    """Users who have it in the environment did not write the option."""
    variable, said = VARIABLES[given]
    done = CliRunner().invoke(program, ["pipeline", *given.split()], env={variable: SECRET})
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert SECRET not in done.output


def test_a_secret_without_a_name_is_refused() -> None:
    with pytest.raises(OptionError, match="accessKey: is missing, but secretKey is set"):
        Credentials(secret_key=SECRET)


def test_a_secret_of_another_type_is_not_shown() -> None:
    secret: Any = SECRET.encode()
    with pytest.raises(OptionError, match=r"^secret-key: must be a text, not bytes$"):
        Credentials(access_key=ACCESS_KEY, secret_key=secret)


def test_a_signature_is_that_of_apaches_clients() -> None:
    sign = wire._signature  # pyright: ignore[reportPrivateUsage]  # To compare.
    fields = {"topic": "T", "AccessKey": "rocketmq2"}
    assert sign(fields, b"", "12345678") == "msA2HLu5rmWfLoIZzBCi0WKUq2o="
    both = base64.b64encode(hmac.digest(b"12345678", b"rocketmq2T{}", "sha1")).decode()
    assert sign(fields, b"{}", "12345678") == both


@pytest.mark.parametrize("job", ["dlq --group", "latency --topic there --groups"])
@pytest.mark.parametrize(("group", "status"), [("quiet", 0), ("quite", 2)])
def test_groups_of_a_guarded_cluster_are_known(
    there: Guarded,
    settings: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    job: str,
    group: str,
    status: int,
) -> None:
    there.cluster.admin.create_group("quiet")
    monkeypatch.setenv("COMETMQ_SECRET_KEY", SECRET)
    done = CliRunner().invoke(program, ["pipeline", *job.split(), group, *there.arguments()])
    assert done.exit_code == status, done.output
    said = "no broker knows the group 'quite'; did you mean 'quiet'?"
    assert (said in done.stderr) == bool(status)
    assert len(settings) == 1 - bool(status)
    assert there.refused == []


def test_a_machine_without_the_file_of_certificates_is_told_so(
    there: Guarded, tmp_path: Path
) -> None:
    """The job looked for it where it began, but executors are on other machines."""
    file = tmp_path / "certificate.pem"
    file.write_text(Path(there.credentials.tls_ca).read_text())
    settings = Settings(tls=True, tls_ca=str(file))
    file.unlink()
    with pytest.raises(OptionError, match=f"tlsCa: {file}: No such file .* on each machine"):
        Wire(there.nameserver, settings)


def test_a_server_is_verified_by_its_address_of_ipv6(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path, "::1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with suppress(OSError), context.wrap_socket(peer, server_side=True) as secured:
                secured.recv(1)

        thread = Thread(target=serve)
        thread.start()
        address = f"[::1]:{listener.getsockname()[1]}"
        try:
            Wire(address, Settings(tls=True, tls_ca=str(certificate))).close()
        finally:
            thread.join()
