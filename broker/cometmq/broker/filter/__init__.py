"""Filters: which messages a consumer wants."""
