"""The runner that serves all agents of a team."""
