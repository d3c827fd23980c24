"""``python -m dispatcher.web`` prints the OpenAPI document, which is also in ``openapi.json``."""

from __future__ import annotations

import json
import sys

from dispatcher.client import Dispatcher
from dispatcher.settings import Settings
from dispatcher.web import api

if __name__ == "__main__":
    with Dispatcher(Settings()) as dispatcher:
        sys.stdout.write(json.dumps(api(dispatcher).openapi(), indent=1) + "\n")
