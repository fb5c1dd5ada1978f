"""Secrets that must not be on a command line: they are read from a file or the environment."""

from __future__ import annotations

import os
from pathlib import Path

from cometmq.client.errors import UsageError


def read_secret(path: str | None, variable: str) -> str:
    """Read the secret from a file; without a path, from the environment, where it may be empty."""
    if path is None:
        return os.environ.get(variable, "")
    try:
        secret = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise UsageError(f"{path}: {reason}") from None
    if not secret:
        raise UsageError(f"{path}: contains no secret")
    return secret
