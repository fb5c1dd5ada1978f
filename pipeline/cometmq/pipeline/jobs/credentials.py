"""How jobs get into the clusters that they are given: one field of their settings for each cluster.

::

    access = Credentials(access_key="etl", secret_key=secret, tls=True, tls_ca="/etc/mq/ca.pem")
    ArchiveSettings(nameserver="mq:9876", topic="orders", to="/data/orders", credentials=access)

A field that is called `credentials` has the options `--access-key`, `--secret-key-file`, `--tls`
and `--tls-ca`, one that is called `to_credentials` has `--to-access-key` and so on. No command line
says a secret, for all users of a machine can read that: it stands in a file, or the environment.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from cometmq.client import ClientConfig
from cometmq.pipeline.jobs.job import check_types, setting
from cometmq.pipeline.option_reading import camel
from cometmq.pipeline.wire import Settings

SUFFIX: Final = "credentials"
"""What the names of fields of settings end with that are credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Who asks a cluster, and how connections to it are made."""

    access_key: str = setting(
        "The access key that requests are signed with.", "", metavar="NAME", in_environment=True
    )
    secret_key: str = setting("A file that contains the secret key.", "", secret=True)
    tls: bool = setting("Connect with TLS.", False)
    tls_ca: str = setting(
        "CA certificates to trust (PEM); without them servers are not verified.", "", metavar="FILE"
    )

    def __post_init__(self) -> None:
        check_types(self)
        Settings(
            access_key=self.access_key,
            secret_key=self.secret_key,
            tls=self.tls,
            tls_ca=self.tls_ca,
        )  # Looks at them.

    def at(self, nameserver: str) -> dict[str, str]:
        """Return the options of `format("cometmq")` by which a cluster is reached."""
        given = {camel(each.name): getattr(self, each.name) for each in fields(self)}
        said = {name: str(value) for name, value in given.items() if value}
        return {"nameserver": nameserver, **said}

    def client_config(self) -> ClientConfig:
        """Return the settings of a client that gets in."""
        return ClientConfig(**{each.name: getattr(self, each.name) for each in fields(self)})


NOBODY: Final = Credentials()
"""Without signatures, and without TLS."""
