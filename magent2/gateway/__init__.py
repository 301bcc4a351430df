"""HTTP in front of the bus: envelopes in, logs out as streams. It never runs an agent."""
