"""The lines of a daemon's log, as text and as JSON."""

from __future__ import annotations

import json
import logging
import sys

from cometmq.admin.logs import JsonFormatter, TextFormatter


def record(message: str, *args: object, error: bool = False) -> logging.LogRecord:
    failure = None
    if error:
        try:
            raise ValueError("broken")
        except ValueError:
            failure = sys.exc_info()
    return logging.LogRecord("cometmq.x", logging.WARNING, "f.py", 1, message, args, failure)


def test_what_a_peer_sent_cannot_make_a_line_of_its_own() -> None:
    line = TextFormatter("%(levelname)s %(message)s").format(
        record("a %s", "b\n2026 ERROR forged\r\x1b[31m")
    )
    assert line == "WARNING a b\\n2026 ERROR forged\\r\\x1b[31m"


def test_a_traceback_stands_below_its_line() -> None:
    line = TextFormatter("%(message)s").format(record("a\nb", error=True))
    assert line.startswith("a\\nb\nTraceback")
    assert line.endswith("ValueError: broken")


def test_a_json_line_is_one_document() -> None:
    line = JsonFormatter().format(record("ä %d\n", 5, error=True))
    assert "\n" not in line
    document = json.loads(line)
    assert document.pop("time").endswith("Z")
    assert document.pop("error").endswith("ValueError: broken")
    assert document == {"level": "warning", "logger": "cometmq.x", "message": "ä 5\n"}
