// The team as a graph: who may hand over to whom, and who did. Loaded when it is first looked at.
import { Background, type Edge, type Node, ReactFlow } from "@xyflow/react";
import "@xyflow/react/dist/base.css";
import { type ReactElement, useMemo } from "react";
import type { Agent } from "../api/shapes";
import { runUnderWay, type Session } from "../fold/state";
import { useCell, usePart } from "../store/cell";
import { useApp } from "../ui/context";
import { plural } from "../ui/format";
import { Hint } from "../ui/parts";
import type { PanelProps } from "./Inspector";

export default function GraphPanel({ session }: PanelProps): ReactElement {
  const app = useApp();
  const team = useCell(app.team);
  const agents = team?.agents ?? [];
  const handoffs = usePart(session, (now) => now.handoffs);
  const active = usePart(session, (now) => now.agent) ?? team?.root ?? null;
  const working = usePart(session, (now) => runUnderWay(now)?.agent ?? null);
  const nodes = useMemo(() => nodesOf(agents, active, working), [agents, active, working]);
  const edges = useMemo(() => edgesOf(agents, handoffs), [agents, handoffs]);
  if (team === null) return <Hint>Loading…</Hint>;
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <div className="min-h-72 flex-1">
        <ReactFlow nodes={nodes} edges={edges} fitView fitViewOptions={{ padding: 0.08, maxZoom: 1.1 }} nodesConnectable={false} nodesDraggable={false} elementsSelectable={false} proOptions={{ hideAttribution: false }} minZoom={0.3}>
          <Background gap={18} color="var(--line)" />
        </ReactFlow>
      </div>
      <ul className="space-y-1 p-4 text-sm text-muted">
        {Object.entries(handoffs).map(([way, times]) => <li key={way}>{way.replace("→", " → ")}: {plural(times, "handoff")}</li>)}
        {Object.keys(handoffs).length === 0 && <li>No handoff in this conversation yet.</li>}
      </ul>
    </div>
  );
}

const RADIUS_PX = 125;
const WIDTH_PX = 112;

/** In a ring, the first on top. */
function nodesOf(agents: readonly Agent[], active: string | null, working: string | null): Node[] {
  return agents.map((agent, place): Node => {
    const angle = (2 * Math.PI * place) / agents.length - Math.PI / 2;
    const look = agent.name === active ? "border-accent! text-accent-ink! font-semibold" : "border-line! text-ink!";
    return {
      id: agent.name,
      position: { x: RADIUS_PX * Math.cos(angle), y: RADIUS_PX * Math.sin(angle) },
      data: { label: agent.name },
      className: `rounded-xl! border! px-2 py-2 text-center text-sm bg-surface! truncate ${look} ${agent.name === working ? "breathe" : ""}`,
      style: { width: WIDTH_PX },
    };
  });
}

function edgesOf(agents: readonly Agent[], done: Session["handoffs"]): Edge[] {
  const names = new Set(agents.map((agent) => agent.name));
  return agents.flatMap((agent) => agent.handoffs.filter((to) => names.has(to)).map((to): Edge => {
    const times = done[`${agent.name}→${to}`] ?? 0;
    return {
      id: `${agent.name}-${to}`, source: agent.name, target: to, type: "straight", animated: times > 0,
      style: { stroke: times > 0 ? "var(--accent-ink)" : "var(--faint)", strokeWidth: times > 0 ? 2.5 : 0.7 },
    };
  }));
}
