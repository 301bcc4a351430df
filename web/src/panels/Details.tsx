// The details on the right: tabs, of which one panel is shown.
import { type ComponentType, type KeyboardEvent, type LazyExoticComponent, type ReactElement, Suspense } from "react";
import { EMPTY_SESSION, type SessionState } from "../fold/state";
import type { Conversation } from "../store/conversation";
import { Observable, useObservable } from "../store/observable";
import { localStore } from "../store/storage";
import { Hint, IconButton } from "../ui/common";
import { useApp } from "../ui/context";
import { Icon, type IconName } from "../ui/icons";
import { LazyBoundary, lazyPanel } from "../ui/lazyPanel";
import { AgentsPanel } from "./AgentsPanel";
import { EventsPanel } from "./EventsPanel";
import { TimelinePanel } from "./TimelinePanel";
import { ToolsPanel } from "./ToolsPanel";
import { UsagePanel } from "./UsagePanel";

/** Each panel subscribes to the part of the session that it shows. */
export interface PanelProps {
  conversation: Conversation | null;
  session: Observable<SessionState>;
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
  { id: "usage", title: "Usage", icon: "gauge", panel: UsagePanel },
  { id: "schedules", title: "Schedules", icon: "clock", panel: lazyPanel(() => import("./SchedulesPanel")) },
  { id: "events", title: "Events", icon: "list", panel: EventsPanel },
  { id: "graph", title: "Graph", icon: "graph", panel: lazyPanel(() => import("./GraphPanel")) },
  { id: "letters", title: "Dead letters", icon: "mail", panel: lazyPanel(() => import("./DeadLettersPanel")), admin: true },
  { id: "outbox", title: "Outbox", icon: "outbox", panel: lazyPanel(() => import("./OutboxPanel")), admin: true },
];

export const selectedPanel = new Observable<string>(localStore.get("panel") ?? "agents");
selectedPanel.subscribe(() => localStore.set("panel", selectedPanel.get()));

const NO_SESSION = new Observable<SessionState>(EMPTY_SESSION);

export function Details({ close }: { close: () => void }): ReactElement {
  const app = useApp();
  const admin = useObservable(app.isAdmin);
  const tabs = TABS.filter((tab) => !tab.admin || admin);
  const selected = useObservable(selectedPanel);
  const tab = tabs.find((one) => one.id === selected) ?? tabs[0];
  const conversation = useObservable(app.current);
  if (tab === undefined) return <></>;
  return (
    <aside aria-label="Details" className="flex h-full flex-col bg-surface">
      <TabList tabs={tabs} selected={tab.id} />
      <div role="tabpanel" id="panel" aria-labelledby={`tab-${tab.id}`} tabIndex={0} className="flex min-h-0 flex-1 flex-col overflow-y-auto">
        <div className="flex items-center justify-between pt-1.5 pr-2 pl-4">
          <h2 className="text-sm font-semibold">{tab.title}</h2>
          <IconButton icon="close" text="Close" label="Close details" className="h-8!" onClick={close} />
        </div>
        <LazyBoundary name={`${tab.id} ${conversation?.id ?? ""}`}>
          <Suspense fallback={<Hint>Loading…</Hint>}><tab.panel conversation={conversation} session={conversation?.session ?? NO_SESSION} /></Suspense>
        </LazyBoundary>
      </div>
    </aside>
  );
}

function TabList({ tabs, selected }: { tabs: readonly Tab[]; selected: string }): ReactElement {
  const move = (event: KeyboardEvent): void => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const at = tabs.findIndex((tab) => tab.id === selected);
    const next = tabs[(at + step + tabs.length) % tabs.length];
    if (next === undefined) return;
    selectedPanel.set(next.id);
    document.getElementById(`tab-${next.id}`)?.focus();
  };
  return (
    <div role="tablist" aria-label="Details" onKeyDown={move} className={`grid shrink-0 gap-0.5 border-b border-line p-1.5 ${tabs.length > 6 ? "grid-cols-[repeat(4,auto)]" : "grid-cols-3"}`}>
      {tabs.map((tab) => (
        <button
          key={tab.id} type="button" role="tab" id={`tab-${tab.id}`} aria-selected={tab.id === selected} aria-controls="panel"
          tabIndex={tab.id === selected ? 0 : -1} onClick={() => selectedPanel.set(tab.id)}
          className={`inline-flex h-8 min-w-0 items-center justify-center gap-1 rounded-lg px-1 text-xs font-medium whitespace-nowrap ${tab.id === selected ? "bg-accent-soft text-accent-ink" : "text-muted hover:bg-sunken"}`}
        >
          <Icon name={tab.icon} size={14} /> {tab.title}
        </button>
      ))}
    </div>
  );
}
