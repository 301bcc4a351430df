"""Tools that agents can use."""
