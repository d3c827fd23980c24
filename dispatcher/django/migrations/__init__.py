"""Migrations of Django's: one for each of the dispatcher's own, under the same name."""
