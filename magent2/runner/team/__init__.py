"""The runner that serves every agent of a team."""
