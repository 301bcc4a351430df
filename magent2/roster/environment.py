"""The environment over the file: AGENT_NAME says which agent, its companions replace what the file says of it.

Limits of the environment replace those of the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from magent2.errors import RosterError
from magent2.roster.spec import AgentSpec, Roster, nearest


@dataclass(frozen=True, slots=True)
class Override:
    """What the environment says about one agent, None where it says nothing; without a name about the default root.

    `needed` agents must be there, because somebody asked for them by name.
    """

    name: str | None = None
    model: str | None = None
    instructions: str | None = None
    tools: Sequence[str] | None = None
    needed: Sequence[str] = ()
    limits: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, roster: Roster) -> Roster:
        """The roster with this agent changed in every scenario that has it, and with these limits."""
        name = roster.scenario().root if self.name is None else self.name
        for wanted in self.needed:
            _find(roster, wanted, "--agent")
        agent = _find(roster, name, "AGENT_NAME")
        changed = replace(
            agent,
            model=agent.model if self.model is None else self.model,
            instructions=agent.instructions if self.instructions is None else self.instructions,
            tools=agent.tools if self.tools is None else tuple(self.tools),
        )
        if self.limits:
            roster = replace(roster, limits={**roster.limits, **self.limits})
        return roster if changed == agent else roster.with_agent(changed)


def _find(roster: Roster, name: str, where: str) -> AgentSpec:
    known = {key: agent for scenario in roster.scenarios.values() for key, agent in scenario.agents.items()}
    if name not in known:
        near = nearest(name, known)
        hint = f"did you mean {near!r}?" if near else f"there is: {', '.join(known)}"
        raise RosterError(where, [f"the file has no agent {name[:80]!r}; {hint}"])
    return known[name]
