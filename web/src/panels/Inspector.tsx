// The right side: one panel at a time.
import { type ComponentType, type KeyboardEvent, type LazyExoticComponent, type ReactElement, Suspense } from "react";
import { EMPTY, type Session } from "../fold/state";
import { Cell, useCell } from "../store/cell";
import type { Conversation } from "../store/conversation";
import { kept } from "../store/kept";
import { useApp } from "../ui/context";
import { Icon, type IconName } from "../ui/icons";
import { Late, late } from "../ui/late";
import { Hint, IconButton } from "../ui/parts";
import { AgentsPanel } from "./AgentsPanel";
import { EventsPanel } from "./EventsPanel";
import { TimelinePanel } from "./TimelinePanel";
import { ToolsPanel } from "./ToolsPanel";
import { UsagePanel } from "./UsagePanel";

/** Each panel watches the part of the session that it shows. */
export interface PanelProps {
  conversation: Conversation | null;
  session: Cell<Session>;
}

type Panel = ComponentType<PanelProps> | LazyExoticComponent<ComponentType<PanelProps>>;

interface Tab {
  id: string;
  title: string;
  icon: IconName;
  panel: Panel;
  admin?: boolean;
}

const TABS: readonly Tab[] = [
  { id: "agents", title: "Agents", icon: "people", panel: AgentsPanel },
  { id: "tools", title: "Tools", icon: "tool", panel: ToolsPanel },
  { id: "timeline", title: "Timeline", icon: "timeline", panel: TimelinePanel },
  { id: "usage", title: "Context and usage", icon: "gauge", panel: UsagePanel },
  { id: "events", title: "Events", icon: "list", panel: EventsPanel },
  { id: "graph", title: "Graph", icon: "graph", panel: late(() => import("./GraphPanel")) },
  { id: "letters", title: "Dead letters", icon: "mail", panel: late(() => import("./LettersPanel")), admin: true },
  { id: "outbox", title: "Outbox", icon: "outbox", panel: late(() => import("./OutboxPanel")), admin: true },
];

export const chosenPanel = new Cell<string>(kept.get("panel") ?? "agents");
chosenPanel.watch(() => kept.set("panel", chosenPanel.get()));

const NO_SESSION = new Cell<Session>(EMPTY);

export function Inspector({ close }: { close: () => void }): ReactElement {
  const app = useApp();
  const admin = useCell(app.isAdmin);
  const tabs = TABS.filter((tab) => !tab.admin || admin);
  const chosen = useCell(chosenPanel);
  const tab = tabs.find((one) => one.id === chosen) ?? tabs[0];
  const conversation = useCell(app.current);
  if (tab === undefined) return <></>;
  return (
    <aside aria-label="Details" className="flex h-full flex-col bg-surface">
      <div className="flex items-center gap-1 border-b border-line px-2 py-1.5">
        <TabList tabs={tabs} chosen={tab.id} />
        <IconButton icon="close" label="Close details" size={16} className="size-8!" onClick={close} />
      </div>
      <div role="tabpanel" id="panel" aria-labelledby={`tab-${tab.id}`} tabIndex={0} className="flex min-h-0 flex-1 flex-col overflow-y-auto">
        <h2 className="px-4 pt-3 pb-1 text-sm font-semibold">{tab.title}</h2>
        <Late name={tab.id}>
          <Suspense fallback={<Hint>Loading…</Hint>}><tab.panel conversation={conversation} session={conversation?.session ?? NO_SESSION} /></Suspense>
        </Late>
      </div>
    </aside>
  );
}

function TabList({ tabs, chosen }: { tabs: readonly Tab[]; chosen: string }): ReactElement {
  const move = (event: KeyboardEvent): void => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const at = tabs.findIndex((tab) => tab.id === chosen);
    const next = tabs[(at + step + tabs.length) % tabs.length];
    if (next === undefined) return;
    chosenPanel.set(next.id);
    document.getElementById(`tab-${next.id}`)?.focus();
  };
  return (
    <div role="tablist" aria-label="Details" onKeyDown={move} className="flex min-w-0 flex-1 gap-0.5 overflow-x-auto">
      {tabs.map((tab) => (
        <button
          key={tab.id} type="button" role="tab" id={`tab-${tab.id}`} aria-selected={tab.id === chosen} aria-controls="panel" aria-label={tab.title} title={tab.title}
          tabIndex={tab.id === chosen ? 0 : -1} onClick={() => chosenPanel.set(tab.id)}
          className={`inline-flex size-9 shrink-0 items-center justify-center rounded-lg ${tab.id === chosen ? "bg-accent-soft text-accent-ink" : "text-muted hover:bg-sunken"}`}
        >
          <Icon name={tab.icon} />
        </button>
      ))}
    </div>
  );
}
