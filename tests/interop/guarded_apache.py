"""The settings of a live Apache RocketMQ broker that answers only clients that sign."""

from __future__ import annotations

import json
from typing import Final

USER: Final = "admin"
SECRET: Final = "12345678"
_AUTH: Final = "org.apache.rocketmq.auth"
GUARDED: Final = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": (
        f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "initAuthenticationUser": json.dumps({"username": USER, "password": SECRET}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": USER, "secretKey": SECRET}),
    "authorizationEnabled": "true",
    "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": (
        f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider"
    ),
}
"""The settings that such a broker starts with; its name server answers everybody."""
