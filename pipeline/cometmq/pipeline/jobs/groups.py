"""Whether there is a consumer group: for jobs that would find nothing of one that is misspelt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.client import ClientError, NotFoundError, SyncClient, UsageError
from cometmq.pipeline.errors import OptionError, PipelineError
from cometmq.pipeline.jobs.credentials import NOBODY
from cometmq.pipeline.jobs.tables import has_topics

if TYPE_CHECKING:
    from cometmq.pipeline.jobs.credentials import Credentials

_RETRIES: Final = "%RETRY%"


def require_group(nameserver: str, credentials: Credentials, group: str, option: str) -> None:
    """Refuse a group that no broker knows; `option` is the one that names it."""
    if credentials != NOBODY:  # The client, which asks brokers for the group, has none.
        if not has_topics(credentials.at(nameserver), _RETRIES + group):
            raise OptionError(f"{option}: {group} has consumed nothing from {nameserver}")
        return
    try:
        with SyncClient(nameserver) as mq:
            mq.admin.dead_letters.show(group, count=1)
    except NotFoundError as error:
        raise OptionError(f"{option}: {error.remark}") from None
    except UsageError as error:
        raise OptionError(f"{option}: {error}") from None
    except ClientError as error:
        raise PipelineError(f"{option}: nobody says whether it is there: {error}") from error
