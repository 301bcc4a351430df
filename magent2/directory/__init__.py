"""The directory: users, agents' roles, channels, friendships, swarms, connectors and keys, one topic per entity."""
