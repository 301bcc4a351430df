"""Who exists, and who gets the mail."""

from magent2.roster.spec import AgentSpec, McpServer, Roster, Scenario

__all__ = ["AgentSpec", "McpServer", "Roster", "Scenario"]
