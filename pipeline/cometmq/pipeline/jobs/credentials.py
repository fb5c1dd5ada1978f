"""How jobs get into clusters: their settings have one field with credentials for each cluster.

::

    access = Credentials(access_key="etl", secret_key=secret, tls=True, tls_ca="/etc/mq/ca.pem")
    ArchiveSettings(nameserver="mq:9876", topic="orders", to="/data/orders", credentials=access)

A field named `credentials` has the options `--access-key`, `--secret-key-file`, `--tls` and
`--tls-ca`; one named `to_credentials` has `--to-access-key` and so on. All users of a machine can
read command lines, so a secret is never on one: it is in a file or in the environment.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from cometmq.client import ClientConfig
from cometmq.pipeline.jobs.job import check_types, setting
from cometmq.pipeline.option_reading import camel
from cometmq.pipeline.wire import Settings

SUFFIX: Final = "credentials"
"""The end of the names of fields with credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The identity towards a cluster, and how connections to it are made."""

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
        )  # Checks them.

    def at(self, nameserver: str) -> dict[str, str]:
        """Return the options of `format("cometmq")` for reaching a cluster."""
        given = {camel(each.name): getattr(self, each.name) for each in fields(self)}
        said = {name: str(value) for name, value in given.items() if value}
        return {"nameserver": nameserver, **said}

    def client_config(self) -> ClientConfig:
        """Return client settings with these credentials."""
        return ClientConfig(**{each.name: getattr(self, each.name) for each in fields(self)})


NOBODY: Final = Credentials()
"""No signatures, and no TLS."""
