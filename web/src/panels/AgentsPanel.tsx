// Who there is, who has the conversation, and a way to give it to another.
import type { ReactElement } from "react";
import type { Agent } from "../api/shapes";
import { runUnderWay, workState } from "../fold/state";
import { useCell, usePart } from "../store/cell";
import { useDoing } from "../ui/asking";
import { useApp } from "../ui/context";
import { Avatar, Badge, Button, Failure, Hint } from "../ui/parts";
import type { PanelProps } from "./Inspector";

export function AgentsPanel({ conversation, session }: PanelProps): ReactElement {
  const app = useApp();
  const team = useCell(app.team);
  const agent = usePart(session, (now) => now.agent);
  const working = usePart(session, (now) => runUnderWay(now)?.agent ?? null);
  const asks = usePart(session, workState) === "asking";
  const { busy, problem, run } = useDoing();
  if (team === null) return <Hint>Loading…</Hint>;
  const active = agent ?? team.root;
  const id = conversation?.standing.get() === "open" ? conversation.id : null;
  const take = (name: string): void => {
    if (id !== null) void run(() => app.api.switchTo(id, name)).then(() => app.hurry());
  };
  return (
    <div className="space-y-2 p-3">
      {problem && <Failure text={problem} />}
      <ul className="space-y-2">
        {team.agents.map((agent) => (
          <Card key={agent.name} agent={agent} active={agent.name === active} working={agent.name === working} asks={asks} take={id === null || busy || team.supervisors.has(agent.name) ? null : () => take(agent.name)} />
        ))}
      </ul>
    </div>
  );
}

function Card({ agent, active, working, asks, take }: { agent: Agent; active: boolean; working: boolean; asks: boolean; take: (() => void) | null }): ReactElement {
  return (
    <li className={`rounded-xl border p-3 ${active ? "border-accent" : "border-line"}`}>
      <div className="flex items-center gap-2.5">
        <Avatar name={agent.name} />
        <span className="min-w-0 flex-1 truncate font-medium">{agent.name}</span>
        {working ? <Badge tone="accent">{asks ? "asks you" : "at work"}</Badge> : active && <Badge tone="accent">active</Badge>}
        {agent.alive === false && <Badge tone="warn">no worker</Badge>}
      </div>
      <p className="mt-1.5 text-sm text-muted">{agent.role}</p>
      {agent.tools.length > 0 && (
        <ul aria-label={`Tools of ${agent.name}`} className="mt-2 flex flex-wrap gap-1">
          {agent.tools.map((tool) => <li key={tool} className="rounded-md bg-sunken px-1.5 py-0.5 font-mono text-xs text-muted">{tool}</li>)}
        </ul>
      )}
      {!active && take !== null && <Button className="mt-2.5 py-1!" onClick={take}>Give it to {agent.name}</Button>}
    </li>
  );
}
