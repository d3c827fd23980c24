"""Calls every operation of the OpenAPI document, so that a new one is called by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fastapi.testclient import TestClient

Places = Iterable[Mapping[str, str]]
"""The names in a path, several times: ``{message_id}``, ``{kind}``, ``{recipient}``, …"""


def crawl(
    client: TestClient,
    places: Callable[[str], Places],
    bodies: Sequence[Mapping[str, Any] | None],
    headers: Mapping[str, str],
) -> Iterator[tuple[str, Any]]:
    """Call each operation at each of its places with each body; yield its name and the answers.

    ``places`` gets the path of the document and returns what its names stand for. A call without a
    body in the document is made once at each place.
    """
    document = client.get("/v1/openapi.json").json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            [media_type] = operation.get("requestBody", {}).get("content") or [None]
            typed = {} if media_type is None else {"Content-Type": media_type}
            for names in places(path):
                for body in bodies if media_type else (None,):
                    yield (
                        operation["operationId"],
                        client.request(
                            method,
                            path.format(**names),
                            content=None if body is None else json.dumps(body),
                            headers={**headers, **typed},
                        ),
                    )
