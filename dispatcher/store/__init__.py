"""Messages and attempts in SQL.

``database`` runs statements on an engine of ``engines``, the only package that knows differences
between databases. ``schema`` describes the tables that the migrations build, and turns messages
into rows and back.

For submission there are ``messages``, and ``outbox`` in a transaction of the caller's, ``lists`` of
opt-outs and pauses. For delivery: ``claims``. For periodic maintenance: ``maintenance``,
``void_ids`` and ``notifications``. For operators: ``listing``, ``survey`` and ``migrate``.
"""
