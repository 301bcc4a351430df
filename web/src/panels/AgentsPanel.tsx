// The agents of the team, which of them is active, and switching to another one.
import type { ReactElement } from "react";
import type { Agent } from "../api/types";
import { activeRun, workState } from "../fold/state";
import { useObservable, useSelector } from "../store/observable";
import { Avatar, Badge, Button, ErrorMessage, Hint } from "../ui/common";
import { useApp, useIsStale } from "../ui/context";
import { useAction } from "../ui/requests";
import type { PanelProps } from "./Details";

export function AgentsPanel({ conversation, session }: PanelProps): ReactElement {
  const app = useApp();
  const team = useObservable(app.team);
  const agent = useSelector(session, (now) => now.activeAgent);
  const stale = useIsStale();
  const running = useSelector(session, (now) => activeRun(now)?.agent ?? null);
  const working = stale ? null : running;
  const work = useSelector(session, workState);
  const doing = work === "awaiting_approval" ? "needs approval" : work === "awaiting_budget" ? "needs budget" : "working";
  const { busy, error, run } = useAction();
  if (team === null) return <Hint>Loading…</Hint>;
  const active = agent ?? team.rootAgent;
  const id = conversation?.status.get() === "open" ? conversation.id : null;
  const switchTo = (name: string): void => {
    if (id !== null) void run(() => app.api.setActiveAgent(id, name)).then(() => app.expectUpdates());
  };
  return (
    <div className="space-y-2 p-3">
      {error && <ErrorMessage text={error} />}
      <ul className="space-y-2">
        {team.agents.map((agent) => (
          <AgentCard key={agent.name} agent={agent} active={agent.name === active} doing={agent.name === working ? doing : null} switchTo={id === null || busy || team.supervisors.has(agent.name) ? null : () => switchTo(agent.name)} />
        ))}
      </ul>
    </div>
  );
}

function AgentCard({ agent, active, doing, switchTo }: { agent: Agent; active: boolean; doing: string | null; switchTo: (() => void) | null }): ReactElement {
  return (
    <li className={`rounded-xl border p-3 ${active ? "border-accent" : "border-line"}`}>
      <div className="flex items-center gap-2.5">
        <Avatar name={agent.name} />
        <span className="min-w-0 flex-1 truncate font-medium">{agent.name}</span>
        {doing !== null ? <Badge tone="accent">{doing}</Badge> : active && <Badge tone="accent">active</Badge>}
        {agent.alive === false && <Badge tone="warn">no worker</Badge>}
      </div>
      <p className="mt-1.5 text-sm text-muted">{agent.role}</p>
      <NameList label={`Tools of ${agent.name}`} names={agent.tools} />
      <NameList label={`MCP servers of ${agent.name}`} title="All tools of the MCP servers" names={agent.mcp} />
      <NameList label={`Subagents of ${agent.name}`} title="Can start" names={agent.subagents} />
      {!active && switchTo !== null && <Button className="mt-2.5 py-1!" onClick={switchTo}>Switch to {agent.name}</Button>}
    </li>
  );
}

function NameList({ label, title, names }: { label: string; title?: string; names: readonly string[] }): ReactElement | null {
  if (names.length === 0) return null;
  return (
    <div className="mt-2">
      {title !== undefined && <p className="mb-1 text-xs text-muted">{title}</p>}
      <ul aria-label={label} className="flex flex-wrap gap-1">
        {names.map((name) => <li key={name} className="rounded-md bg-sunken px-1.5 py-0.5 font-mono text-xs text-muted wrap-anywhere">{name}</li>)}
      </ul>
    </div>
  );
}
