// The team as a graph of possible and actual handoffs, and of the subagents that agents can start. Loaded when it is first opened.
import { Background, type Edge, type Node, ReactFlow } from "@xyflow/react";
import "@xyflow/react/dist/base.css";
import { type ReactElement, useMemo } from "react";
import type { Agent } from "../api/types";
import { activeRun, type SessionState, type SubagentItem } from "../fold/state";
import { useObservable, useSelector } from "../store/observable";
import { Hint } from "../ui/common";
import { useApp, useIsStale } from "../ui/context";
import { plural } from "../ui/format";
import type { PanelProps } from "./Details";

export default function GraphPanel({ session }: PanelProps): ReactElement {
  const app = useApp();
  const team = useObservable(app.team);
  const agents = team?.agents ?? [];
  const handoffs = useSelector(session, (now) => now.handoffs);
  const active = useSelector(session, (now) => now.activeAgent) ?? team?.rootAgent ?? null;
  const stale = useIsStale();
  const running = useSelector(session, (now) => activeRun(now)?.agent ?? null);
  const working = stale ? null : running;
  const nodes = useMemo(() => buildNodes(agents, active, working), [agents, active, working]);
  const edges = useMemo(() => [...buildEdges(agents, handoffs), ...subagentEdges(agents)], [agents, handoffs]);
  const starts = useSelector(session, (now) => now.items).filter((item) => item.kind === "subagent");
  if (team === null) return <Hint>Loading…</Hint>;
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <div className="min-h-72 flex-1">
        <ReactFlow nodes={nodes} edges={edges} fitView fitViewOptions={{ padding: 0.08, maxZoom: 1.1 }} nodesConnectable={false} nodesDraggable={false} elementsSelectable={false} proOptions={{ hideAttribution: false }} minZoom={0.3}>
          <Background gap={18} color="var(--line)" />
        </ReactFlow>
      </div>
      <ul className="space-y-1 p-4 text-sm text-muted">
        {Object.entries(handoffs).map(([edge, times]) => <li key={edge}>{edge.replace("→", " → ")}: {plural(times, "handoff")}</li>)}
        {Object.keys(handoffs).length === 0 && <li>No handoffs yet.</li>}
        {agents.filter((agent) => agent.subagents.length > 0).map((agent) => <li key={agent.name}>{agent.name} can start {agent.subagents.join(", ")}{startedBy(starts, agent.name)}</li>)}
      </ul>
    </div>
  );
}

/** How many subagents an agent has started in this conversation. */
function startedBy(starts: readonly SubagentItem[], agent: string): string {
  const count = starts.filter((item) => item.agent === agent).length;
  return count === 0 ? "" : `: ${count} started`;
}

const RADIUS_PX = 125;
const WIDTH_PX = 112;

/** The agents in a circle, the first one at the top. */
function buildNodes(agents: readonly Agent[], active: string | null, working: string | null): Node[] {
  return agents.map((agent, index): Node => {
    const angle = (2 * Math.PI * index) / agents.length - Math.PI / 2;
    const border = agent.name === active ? "border-accent! text-accent-ink! font-semibold" : "border-line! text-ink!";
    return {
      id: agent.name,
      position: { x: RADIUS_PX * Math.cos(angle), y: RADIUS_PX * Math.sin(angle) },
      data: { label: agent.name },
      className: `rounded-xl! border! px-2 py-2 text-center text-sm bg-surface! truncate ${border} ${agent.name === working ? "pulse-slow" : ""}`,
      style: { width: WIDTH_PX },
    };
  });
}

function buildEdges(agents: readonly Agent[], done: SessionState["handoffs"]): Edge[] {
  const names = new Set(agents.map((agent) => agent.name));
  return agents.flatMap((agent) => agent.handoffs.filter((to) => names.has(to)).map((to): Edge => {
    const times = done[`${agent.name}→${to}`] ?? 0;
    return {
      id: `${agent.name}-${to}`, source: agent.name, target: to, type: "straight", animated: times > 0,
      style: { stroke: times > 0 ? "var(--accent-ink)" : "var(--faint)", strokeWidth: times > 0 ? 2.5 : 0.7 },
    };
  }));
}

/** Dashed: an agent can start another one for a task of its own. An agent that can start itself has no edge. */
function subagentEdges(agents: readonly Agent[]): Edge[] {
  const names = new Set(agents.map((agent) => agent.name));
  return agents.flatMap((agent) => agent.subagents.filter((to) => names.has(to) && to !== agent.name).map((to): Edge => ({
    id: `${agent.name}~${to}`, source: agent.name, target: to, type: "default",
    style: { stroke: "var(--warn)", strokeWidth: 1.5, strokeDasharray: "5 4" },
  })));
}
