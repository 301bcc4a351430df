"""What agents can do."""
