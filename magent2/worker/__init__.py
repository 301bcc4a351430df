"""The worker: claims mail of agents, runs a runner for each message, and writes the events of the run."""
