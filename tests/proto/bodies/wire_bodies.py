"""The bodies among the captured vectors, with the requests and answers that they belong to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

VECTORS = Path(__file__).parents[2] / "vectors" / "wire"


class WireBody(NamedTuple):
    """One captured body."""

    name: str
    code: int
    is_request: bool
    is_from_apache: bool
    response_code: int | None
    text: str

    @property
    def data(self) -> bytes:
        return self.text.encode()


def _bodies() -> list[WireBody]:
    found: list[WireBody] = []
    answers: dict[str, int] = {}
    for path in sorted(VECTORS.glob("[0-9]*.jsonl")):
        for line in path.read_text().splitlines():
            vector: dict[str, Any] = json.loads(line)
            is_request = vector["kind"] != "response"
            if not is_request:
                answers[vector["exchange"]] = vector["responseCode"]
            if vector.get("bodyText"):
                header: dict[str, Any] = vector["header"] or {}
                found.append(
                    WireBody(
                        name=vector["name"],
                        code=vector["requestCode"],
                        is_request=is_request,
                        is_from_apache=header.get("language") == "JAVA",
                        response_code=answers.get(vector["exchange"]),
                        text=vector["bodyText"],
                    )
                )
    return [body._replace(response_code=answers.get(body.name.rsplit("-", 1)[0])) for body in found]


BODIES = _bodies()
