"""Conversations over the bus."""
