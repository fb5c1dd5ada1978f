"""The settings of a running broker: changing some (25), and reading all (26)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cometmq.broker.errors import ConfigError, RequestError, SettingFixedError
from cometmq.broker.settings import as_texts, reconfigured
from cometmq.proto.bodies import decode_settings, encode_settings
from cometmq.proto.codes import ResponseCode
from cometmq.proto.commands.admin import GetBrokerConfigResponse
from cometmq.store.errors import PutRefusedError

if TYPE_CHECKING:
    from cometmq.broker.session import Session
    from cometmq.proto.command import Command

log = logging.getLogger(__name__)


def update_broker_config(request: Command, session: Session) -> Command:
    """25: change settings of this broker, all that are asked for or none, until it stops.

    Unknown keys are ignored, as Apache does, whose tools send all kinds of keys.
    """
    state = session.state
    peer = session.peer.host
    try:
        config, warnings = reconfigured(state.config, decode_settings(request.body))
    except SettingFixedError as error:
        raise RequestError(ResponseCode.NO_PERMISSION, str(error)) from None
    except ConfigError as error:
        raise RequestError(ResponseCode.INVALID_PARAMETER, str(error)) from None
    for warning in warnings:
        log.warning("%s: update of the config: %s", peer, warning)
    if config != state.config:
        changed = as_texts(config).items() - as_texts(state.config).items()
        try:
            state.configure(config)
        except (OSError, PutRefusedError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"nothing is changed: {error}") from error
        log.info("%s: config updated: %s", peer, dict(sorted(changed)))
    return request.answer(ResponseCode.SUCCESS)


def get_broker_config(request: Command, session: Session) -> Command:
    """26: the settings in force."""
    state = session.state
    fields = GetBrokerConfigResponse(state.config_version.encode().decode())
    body = encode_settings(as_texts(state.config))
    return request.answer(ResponseCode.SUCCESS, fields, body=body)
