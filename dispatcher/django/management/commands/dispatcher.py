"""``manage.py dispatcher …``: the command line, with the settings of the project."""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER, ArgumentParser
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand

from dispatcher import cli
from dispatcher.django import project


class Command(BaseCommand):
    """Runs the command line in this process, and the processes it starts, with these settings."""

    help = "Run the dispatcher's command line: manage.py dispatcher --help"
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        self.handle(words=argv[2:])

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("words", nargs=REMAINDER)

    def handle(self, *_: Any, words: Sequence[str], **__: Any) -> None:
        os.environ.update(project.load_settings().environment())
        typed, sys.argv = sys.argv, ["dispatcher", *words]
        try:
            cli.main()
        finally:
            sys.argv = typed
