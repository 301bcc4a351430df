"""The agents that exist, the teams they form, and the rules that decide which agent answers a message."""

from magent2.roster.spec import AgentSpec, McpServer, Roster, Scenario

__all__ = ["AgentSpec", "McpServer", "Roster", "Scenario"]
