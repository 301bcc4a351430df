"""The environment over the file: AGENT_NAME says which agent, its companions replace what the file says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from magent2.errors import RosterError
from magent2.roster.spec import Roster, nearest


@dataclass(frozen=True, slots=True)
class Override:
    """What the environment says about one agent, None where it says nothing; without a name about the default root."""

    name: str | None = None
    model: str | None = None
    instructions: str | None = None
    tools: Sequence[str] | None = None

    def apply(self, roster: Roster) -> Roster:
        """The roster with this agent changed in every scenario that has it."""
        name = roster.scenario().root if self.name is None else self.name
        known = {key: agent for scenario in roster.scenarios.values() for key, agent in scenario.agents.items()}
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near!r}?" if near else f"there is: {', '.join(known)}"
            raise RosterError("AGENT_NAME", [f"the file has no agent {name[:80]!r}; {hint}"])
        agent = known[name]
        changed = replace(
            agent,
            model=agent.model if self.model is None else self.model,
            instructions=agent.instructions if self.instructions is None else self.instructions,
            tools=agent.tools if self.tools is None else tuple(self.tools),
        )
        return roster if changed == agent else roster.with_agent(changed)
