"""What differs between databases: one engine for each, and nothing of it elsewhere in the package.

An engine's module imports its driver, which is an extra, so it is imported when a database of its
kind is opened. ``types`` and ``errors`` need no driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from dispatcher.errors import InvalidSettings, MissingExtra, install_line, quoted
from dispatcher.store.engines.base import StoreEngine

ACCEPTED = "sqlite:///…, postgresql://…, mysql://… or mariadb://…"
_ENGINES = {
    "sqlite": ("sqlite", "sqlite", "SQLiteEngine", None),
    "postgresql": ("postgresql+psycopg", "postgresql", "PostgreSQLEngine", "postgres"),
    "mysql": ("mysql+pymysql", "mariadb", "MariaDBEngine", "mysql"),
}
"""By the kind of database: the name of its driver, the module, its engine and the extra."""
_KINDS = {
    **dict.fromkeys(["sqlite", "sqlite+pysqlite", "sqlite+aiosqlite"], "sqlite"),
    "postgres": "postgresql",
    "postgresql": "postgresql",
    **{f"postgresql+{driver}": "postgresql" for driver in (
        "psycopg", "psycopg_async", "psycopg2", "psycopg2cffi", "asyncpg", "pg8000",
    )},
    "mysql": "mysql",
    "mariadb": "mysql",
    **{f"{kind}+{driver}": "mysql" for kind in ("mysql", "mariadb") for driver in (
        "pymysql", "mysqldb", "mysqlconnector", "aiomysql", "asyncmy", "mariadbconnector",
    )},
}  # fmt: skip


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WITHOUT_EFFECT = _words(
    "autoreconnect connection_limit encoding max_overflow pool pool_size pool_timeout reconnect "
    "socket_timeout"
)
"""Parameters that are ignored: they tune another client's pool, or ask for what holds anyway."""
_KNOWN = {
    "sqlite": _words("cached_statements check_same_thread timeout uri"),
    "postgresql": _words(
        "application_name channel_binding client_encoding connect_timeout dbname "
        "fallback_application_name gssdelegation gssencmode gsslib host hostaddr keepalives "
        "keepalives_count keepalives_idle keepalives_interval krbsrvname load_balance_hosts "
        "max_protocol_version min_protocol_version options passfile password port "
        "prepare_threshold require_auth requirepeer service ssl_max_protocol_version "
        "ssl_min_protocol_version sslcert sslcertmode sslcompression sslcrl sslcrldir sslkey "
        "sslmode sslnegotiation sslpassword sslrootcert sslsni target_session_attrs "
        "tcp_user_timeout user"
    ),
    "mysql": _words(
        "bind_address charset client_flag collation connect_timeout host init_command "
        "local_infile password program_name read_default_file read_default_group read_timeout "
        "server_public_key sql_mode ssl_ca ssl_capath ssl_cert ssl_check_hostname ssl_cipher "
        "ssl_disabled ssl_key ssl_key_password ssl_verify_cert ssl_verify_identity unix_socket "
        "use_unicode user write_timeout"
    ),
}
_SEVERAL = re.compile(r"(postgres\w*(?:\+\w+)?://(?:[^/?#]*@)?)([^/?#@,]+(?:,[^/?#@,]+)+)(/[^?]*)?")
_WORDS = {"true": "true", "1": "true", "yes": "true", "false": "false", "0": "false", "no": "false"}
_SSL_MODES: Mapping[str, Mapping[str, str]] = {
    "disabled": {"ssl_disabled": "true"},
    "preferred": {},
    "required": {"ssl_check_hostname": "false"},
    "verify_ca": {"ssl_check_hostname": "false"},
    "verify_identity": {},
}
"""What MySQL's own client calls ``ssl-mode``; the driver verifies by the authority it is given."""
_NUMBERS = _words(
    "cached_statements client_flag connect_timeout keepalives keepalives_count keepalives_idle "
    "keepalives_interval read_timeout tcp_user_timeout write_timeout"
)
_BOOLEANS = _words(
    "check_same_thread local_infile pgbouncer ssl_check_hostname ssl_disabled ssl_verify_cert "
    "ssl_verify_identity uri use_unicode"
)
_TEXT_IS_TRUE = _words("ssl_disabled ssl_verify_cert ssl_verify_identity")
"""The driver takes each text of these for true."""


def engine_of(text: str) -> StoreEngine:
    """Return the engine of a database's URL. Raises InvalidSettings, also for a missing driver."""
    url = read_url(text)
    if url.drivername == "sqlite" and url.database in {None, "", ":memory:"}:
        raise InvalidSettings("database_url", "SQLite without a file", ACCEPTED)
    _, module, name, extra = _ENGINES[url.get_backend_name()]
    try:
        engine: StoreEngine = getattr(import_module(f"{__name__}.{module}"), name)(url)
        url.get_dialect().import_dbapi()
    except (ImportError, NoSuchModuleError) as error:
        problem = f"its driver is not installed ({error})"
        if extra is None:  # a Python without SQLite
            raise InvalidSettings("database_url", problem, ACCEPTED) from error
        raise MissingExtra(extra, "database_url", problem, install_line(extra)) from error
    return engine


def read_url(text: str) -> URL:
    text = text.strip()
    if several := _SEVERAL.match(text):
        hosts = "&".join(f"host={host}" for host in several[2].split(","))
        rest = text[several.end() :].removeprefix("?")
        text = f"{several[1]}{several[3] or '/'}?{hosts}{'&' if rest else ''}{rest}"
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise InvalidSettings("database_url", "cannot be read", ACCEPTED) from None
    kind = _KINDS.get(url.drivername)
    if kind is None:
        raise InvalidSettings("database_url", f"{url.drivername} is not supported", ACCEPTED)
    query: dict[str, str | tuple[str, ...]] = {}
    for name, value in url.query.items():
        if isinstance(value, str):
            query |= _taken_over(kind, name, value, url)
        elif kind == "postgresql" and name in {"host", "port"}:
            query[name] = value
        else:
            raise _refused(name, "is given more than once", "one of them")
    url = url.set(drivername=_ENGINES[kind][0], query=query)
    try:
        url.get_dialect()().create_connect_args(url)
    except (ArgumentError, ValueError):
        raise InvalidSettings("database_url", "its parameters cannot be read", ACCEPTED) from None
    except (ImportError, NoSuchModuleError):
        pass  # whoever opens the database says what is missing
    return url


def _taken_over(kind: str, name: str, value: str, url: URL) -> Mapping[str, str]:
    lower = name.lower().replace("-", "_")
    if kind == "sqlite" and (url.database or "").startswith("file:"):
        return {name: value}
    if lower in _NUMBERS and not re.fullmatch(r"[0-9]{1,9}", value):
        raise _refused(name, "is no whole number", "digits, such as 10")
    if lower in _BOOLEANS:
        if value.lower() not in _WORDS:
            raise _refused(name, f"is {quoted(value)}", "true or false")
        value = _WORDS[value.lower()]
    spelt = {"postgresql": _as_psycopg, "mysql": _as_pymysql}.get(kind)
    parameters = spelt(name, lower, value, url) if spelt else None
    if parameters is not None:
        return parameters
    if lower in _KNOWN[kind]:
        return {lower: value}
    if lower in _WITHOUT_EFFECT:
        return {}
    raise _refused(name, "is not known", "none, or one of " + ", ".join(sorted(_KNOWN[kind])))


def _as_psycopg(name: str, lower: str, value: str, _url: URL) -> Mapping[str, str] | None:
    if lower in {"schema", "currentschema"} and value != "public":
        raise _refused(name, "is set by table_schema", "table_schema, and no such parameter")
    if lower == "prepare_threshold" and not re.fullmatch(r"none|[0-9]{1,9}", value.lower()):
        raise _refused(name, f"is {quoted(value)}", "a whole number, or none")
    if lower == "ssl":
        word = _WORDS.get(value.lower())
        return {"sslmode": {"true": "require", "false": "disable"}.get(word or "", value)}
    if lower in {"statement_cache_size", "prepared_statement_cache_size", "preparethreshold"}:
        lower, value = "pgbouncer", "true" if value == "0" else "false"
    if lower == "pgbouncer" and value == "true":
        return {"prepare_threshold": "none"}
    return {} if lower in {"schema", "currentschema", "pgbouncer"} else None


def _as_pymysql(name: str, lower: str, value: str, url: URL) -> Mapping[str, str] | None:
    if lower in _TEXT_IS_TRUE and value == "false":
        return {}
    if lower not in {"ssl_mode", "sslmode"}:
        return None
    mode = value.lower().replace("-", "_")
    if mode not in _SSL_MODES:
        raise _refused(name, f"is {quoted(value)}", f"one of {', '.join(_SSL_MODES)}")
    if mode.startswith("verify") and not {"ssl_ca", "ssl-ca"} & url.query.keys():
        raise _refused(name, "needs the file of an authority", "ssl_ca=FILE beside it")
    return _SSL_MODES[mode]


def _refused(name: str, problem: str, accepted: str) -> InvalidSettings:
    return InvalidSettings("database_url", f"its parameter {quoted(name)} {problem}", accepted)
