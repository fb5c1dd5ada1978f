"""Administration of the settings of running brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.client._admin_asking import AdminAsking, Change
from cometmq.client.errors import ProtocolViolationError, UsageError
from cometmq.proto.bodies import decode_settings, encode_settings
from cometmq.proto.codes import RequestCode
from cometmq.proto.errors import BodyError

if TYPE_CHECKING:
    from collections.abc import Mapping


class SettingsAdmin(AdminAsking):
    """The calls about the settings of running brokers; see `Admin`."""

    async def settings(self, broker: str | None = None) -> dict[str, dict[str, str]]:
        """Return the settings in force on all brokers, or on one, by the broker's name.

        ::

            for broker, settings in (await mq.admin.settings()).items():
                print(broker, settings["fileReservedTime"], "hours are kept")

        Settings that Apache has, too, have its names, and values in its notation.
        """
        return {
            name: await self._settings_at(address)
            for name, address in (await self._masters(broker)).items()
        }

    async def change_settings(
        self, settings: Mapping[str, str], *, broker: str | None = None
    ) -> dict[str, Change]:
        """Change settings of all running brokers, or of one.

        ::

            await mq.admin.change_settings({"retention_hours": "24"})

        Names are CometMQ's or Apache's. Returns what happened on each broker: "changed", or "kept"
        if no setting in force differs. If a broker refuses a setting, `RefusedError` is raised and
        nothing is changed on that broker. But brokers ignore names that they do not know, and
        Apache's also ignore values that they cannot read; that, too, is "kept".

        A CometMQ broker forgets the changes when it ends; Apache's writes all its settings into the
        file with which it was started.
        """
        if not settings:
            raise UsageError("settings: nothing to change; give at least one")
        done: dict[str, Change] = {}
        for name, address in (await self._masters(broker)).items():
            before = await self._settings_at(address)
            body = encode_settings(settings)
            await self._ask(address, RequestCode.UPDATE_BROKER_CONFIG, None, body=body)
            done[name] = "kept" if await self._settings_at(address) == before else "changed"
        return done

    async def _settings_at(self, address: str) -> dict[str, str]:
        response = await self._ask(address, RequestCode.GET_BROKER_CONFIG, None)
        try:
            return decode_settings(response.body)
        except BodyError as error:
            raise ProtocolViolationError(response.code, str(error), address) from None
