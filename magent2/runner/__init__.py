"""Runners: what turns an envelope into the events of a run.

Importing this package is cheap; the SDK comes in with the module that needs it.
"""
