"""Runners: they answer an envelope with the events of a run.

Importing this package is cheap. Only the modules that use the SDK import it.
"""
