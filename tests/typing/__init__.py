"""Calls that type checkers accept or refuse. `make check` runs mypy and pyright over them."""
