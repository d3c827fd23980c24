"""Dispatcher."""
