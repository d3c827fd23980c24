"""The store and Redis in memory, on a clock that tests move.

Each class stands for one that reaches a server and gives the same answers; all that is above them
is the real code. ``tests/simulation`` compares them with PostgreSQL, SQLite and Redis, and plays
its faults on them.
"""
