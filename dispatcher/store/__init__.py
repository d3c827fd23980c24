"""Messages and attempts in SQL.

``database`` runs statements on an engine of ``engines``, the only package that knows differences
between databases. ``schema`` describes the tables that the migrations build, and turns messages
into rows and back.
"""
