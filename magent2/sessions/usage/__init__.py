"""The usage of models: a ledger of every call, the limits on it, and the runs that wait for more budget."""
