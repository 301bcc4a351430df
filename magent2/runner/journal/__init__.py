"""The journal: records each turn of a run, so that another worker can continue it."""
