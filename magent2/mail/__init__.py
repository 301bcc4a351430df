"""Addressed messages over the bus: delivery, dead letters, registration of agent names."""
