"""Checks that a consumer group exists, for jobs that would find nothing for a misspelt one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.client import ClientError, NotFoundError, SyncClient, UsageError
from cometmq.pipeline.errors import OptionError, PipelineError

if TYPE_CHECKING:
    from cometmq.pipeline.jobs.credentials import Credentials


def require_group(nameserver: str, credentials: Credentials, group: str, option: str) -> None:
    """Refuse a group that no broker knows; `option` is the option that names it."""
    try:
        with SyncClient(nameserver, credentials.client_config()) as mq:
            mq.admin.dead_letters.show(group, count=1)
    except NotFoundError as error:
        raise OptionError(f"{option}: {error.remark}") from None
    except UsageError as error:
        raise OptionError(f"{option}: {error}") from None
    except ClientError as error:
        raise PipelineError(f"{option}: cannot check that it exists: {error}") from error
