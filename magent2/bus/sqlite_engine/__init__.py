"""Internals of the SQLite and memory engines, which `magent2.bus.sqlite` and `magent2.bus.memory` provide."""
