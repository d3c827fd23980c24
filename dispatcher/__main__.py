"""The command ``dispatcher``, and ``python -m dispatcher``."""

import sys
from contextlib import suppress
from pathlib import Path

from dispatcher.errors import MissingExtra, needs


def main() -> None:
    """Run the command line; without its extra, say how to install it, with exit code 2.

    Modules that settings name are found in the working directory, too, as by ``celery``. It comes
    last: a file there must not take the place of a library.
    """
    with suppress(FileNotFoundError):  # a folder that was deleted
        folder = str(Path.cwd())
        if not sys.flags.safe_path and not {"", folder} & {*sys.path}:
            sys.path.append(folder)
    try:
        with needs("cli", "dispatcher"):
            from dispatcher import cli  # noqa: PLC0415 - an extra
    except MissingExtra as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the extra would print it
        sys.exit(2)
    cli.main()


if __name__ == "__main__":
    main()
