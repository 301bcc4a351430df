"""The message bus inside one run."""
