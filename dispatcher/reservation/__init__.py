"""Exact quotas over promised times: the windows in Redis.

``windows`` books, moves and releases messages leg by leg through ``shards``; ``plan`` books in
copies of windows. ``upkeep`` rebuilds windows from the store and settles what the store did not
confirm, ``fence`` closes those of a server that may have lost data. ``contents`` and ``timeline``
read; ``refusals`` notes refused submits; ``booking`` has the values, ``encoding``
the words of the scripts.
"""
