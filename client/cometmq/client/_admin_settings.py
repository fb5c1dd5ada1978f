"""Administration of the settings that brokers run with."""

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

        They have Apache's names, and values as Apache writes them, where it has the setting.
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

        Names are CometMQ's or Apache's. Returns what became of it on each broker: "changed", or
        "kept" where nothing in force is another. What a broker refuses is a `RefusedError`, and
        nothing is changed on it then; but brokers pass over names that they do not know, and
        Apache's also over values that they cannot read: "kept", too.

        A CometMQ broker forgets it when it ends; Apache's writes all its settings into the file
        that it was started with.
        """
        if not settings:
            raise UsageError("settings: there are none to change")
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
