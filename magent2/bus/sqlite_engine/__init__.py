"""The store behind the SQLite and the memory engine; `magent2.bus.sqlite` and `magent2.bus.memory` are their faces."""
