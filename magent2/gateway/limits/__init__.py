"""Limits of a gateway: rates, sizes, depths and connections."""
