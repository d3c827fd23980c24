"""What manage.py finds here."""
