"""Modules of the PostgreSQL engine."""
