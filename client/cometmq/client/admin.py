"""Administration: topics, groups, messages and settings, asked of name servers and brokers.

::

    await mq.admin.create_topic("orders", queues=8)
    for status in await mq.admin.topic_status("orders"):
        print(status.queue, status.message_count)
"""

from __future__ import annotations

from cometmq.client._admin_asking import BrokerListed, Change
from cometmq.client._admin_dead_letters import DeadLetters
from cometmq.client._admin_groups import GroupAdmin, GroupListed, MemberListed, QueueProgress
from cometmq.client._admin_messages import MessageAdmin
from cometmq.client._admin_settings import SettingsAdmin
from cometmq.client._admin_topics import BrokerRoute, QueueStatus, TopicListed, permission_text
from cometmq.client._admin_transactions import TransactionAdmin


class Admin(GroupAdmin, MessageAdmin, SettingsAdmin):
    """The administrative calls of a client: `Client.admin`.

    ::

        print([topic.name for topic in await mq.admin.topics()])

    A call that changes something asks every master concerned. If it fails halfway, some masters
    are changed and others not; the same call again does the rest.
    """

    @property
    def dead_letters(self) -> DeadLetters:
        """The calls about dead letters, the messages that groups have given up.

        ::

            await mq.admin.dead_letters.redrive("billing", rate=100)
        """
        return DeadLetters(self._get_parts, self)

    @property
    def transactions(self) -> TransactionAdmin:
        """The calls about undecided transactions.

        ::

            for pending in await mq.admin.transactions.pending():
                print(pending.id, pending.sent_at)
        """
        return TransactionAdmin(self._get_parts)


__all__ = [
    "Admin",
    "BrokerListed",
    "BrokerRoute",
    "Change",
    "GroupListed",
    "MemberListed",
    "QueueProgress",
    "QueueStatus",
    "TopicListed",
    "permission_text",
]
