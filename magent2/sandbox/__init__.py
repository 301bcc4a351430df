"""Python blocks: code that a model wrote, run where it can do no harm."""
