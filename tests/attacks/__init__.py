"""Attacks on the gateway, the worker and the page, which they must withstand."""
