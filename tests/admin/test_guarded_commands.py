"""Commands in a cluster that uses TLS and answers only signed requests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from tests.pipeline.guarded import ACCESS_KEY, Guarded, guarded, make_certificate

from cometmq.admin.program import program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cometmq.testing import Cluster

SECRET = "hush-hush"


@pytest.fixture
def there(rocketmq_session: Cluster, certificate: Path) -> Iterator[Guarded]:
    with guarded(rocketmq_session, certificate, SECRET) as found:
        yield found


@pytest.fixture
def secret_file(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    return str(path)


def run(*arguments: str, status: int = 0, **environment: str) -> Result:
    result = CliRunner().invoke(program, arguments, env=environment)
    assert result.exit_code == status, (result.output, result.exception)
    return result


def test_commands_get_in_by_options(there: Guarded, secret_file: str) -> None:
    access = [*there.arguments(), "--secret-key-file", secret_file]
    run("topic", "create", "guarded-orders", *access)
    run("send", "guarded-orders", "o-17 paid", "--key", "o-17", *access)
    assert "o-17 paid" in run("tail", "guarded-orders", "--no-follow", *access).output
    consumed = run("consume", "guarded-orders", "--start", "first", "-c", "1", *access)
    assert "o-17 paid" in consumed.output
    assert "guarded-orders" in run("topic", "list", *access).output.split()
    assert run("group", "list", *access).output
    assert there.refused == []


def test_the_environment_says_who_asks(there: Guarded) -> None:
    where = [option for option in there.arguments() if "key" not in option]
    run("topic", "list", *where, COMETMQ_ACCESS_KEY=ACCESS_KEY, COMETMQ_SECRET_KEY=SECRET)
    assert there.refused == []


def test_who_is_not_let_in_is_told_so(there: Guarded) -> None:
    said = run("topic", "list", *there.arguments(), status=1, COMETMQ_SECRET_KEY="another").output
    assert "16" in said
    assert there.refused


def test_a_certificate_that_nobody_vouches_for_is_told_as_that(
    there: Guarded, secret_file: str, tmp_path: Path
) -> None:
    given = [*there.arguments(), "--secret-key-file", secret_file]
    given += ["--tls-ca", str(make_certificate(tmp_path))]
    said = run("topic", "list", *given, status=1).output
    assert "--tls-ca does not vouch for it" in said
    assert "Is it running?" not in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--access-key", "me"], "--secret-key-file: is missing, but --access-key is set"),
        (["--tls-ca", "ca.pem"], "--tls-ca: needs --tls; without it nothing is encrypted"),
        (["--tls", "--tls-ca", "tls.pem"], "--tls-ca: tls.pem: no such file"),
        (["--secret-key-file", "no-such"], "no-such: No such file or directory"),
        (["--secret-key-file", os.devnull], "/dev/null: contains no secret"),
    ],
)
def test_what_cannot_be_is_told_in_the_words_of_the_options(given: list[str], said: str) -> None:
    assert said in run("topic", "list", *given, status=2).output


def test_a_secret_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"\xff\xfe\xff")
    given = ["--access-key", "me", "--secret-key-file", str(tmp_path / "secret")]
    assert "is not text" in run("topic", "list", *given, status=2).output
