"""A daemon's log on stderr: text lines for people, or JSON lines for programs."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")

_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {
    9: "\t",
    10: "\\n",
    13: "\\r",
}


class TextFormatter(logging.Formatter):
    """One line per event. It may contain what peers sent, so control characters are escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        """Make the line; a traceback follows below it."""
        record.message = record.message.translate(_CONTROLS)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One JSON document per event: `time` in UTC, `level`, `logger`, `message`, maybe `error`."""

    def format(self, record: logging.LogRecord) -> str:
        """Make the document."""
        at = datetime.fromtimestamp(record.created, UTC)
        document = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False)


def set_up_logs(level: str, form: str) -> None:
    """Log to stderr from this level on, in one of `FORMATS`."""
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
