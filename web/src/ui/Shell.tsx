// The layout: conversation list, conversation, details. A phone shows one of them at a time.
import { type ReactElement, type ReactNode, useEffect, useState } from "react";
import { ChatView } from "../chat/ChatView";
import { ConversationList, titleOf } from "../panels/ConversationList";
import { Details } from "../panels/Details";
import { Observable, useObservable } from "../store/observable";
import { currentRoute } from "../store/route";
import { localStore } from "../store/storage";
import { parentConversation } from "../store/subagents";
import type { ConnectionStatus } from "../transport/protocol";
import { PartBoundary } from "./boundary";
import { Badge, IconButton } from "./common";
import { useApp } from "./context";
import { ShortcutHelp } from "./ShortcutHelp";
import { listenForShortcuts } from "./shortcuts";
import { theme, THEMES } from "./theme";

const sidebarOpen = new Observable(!isPhone());
const detailsOpen = new Observable(matchMedia("(min-width: 64rem)").matches && localStore.get("details") !== "closed");
const helpOpen = new Observable(false);

export function Shell(): ReactElement {
  const showSidebar = useObservable(sidebarOpen);
  const showDetails = useObservable(detailsOpen);
  const showHelp = useObservable(helpOpen);
  const conversation = useObservable(currentRoute).conversationId;
  useEffect(() => listenForShortcuts({ showHelp: () => helpOpen.set(true), showConversations: () => sidebarOpen.set(true) }), []);
  return (
    <div className="flex h-full flex-col">
      <a href="#composer" onClick={(event) => { event.preventDefault(); document.getElementById("composer")?.focus(); }} className="sr-only focus:not-sr-only focus:absolute focus:z-50 focus:m-2 focus:rounded-lg focus:bg-raised focus:px-3 focus:py-2">Skip to the message box</a>
      <Header />
      <div className="relative flex min-h-0 flex-1">
        {showSidebar && <SidePanel side="left" close={() => sidebarOpen.set(false)}><PartBoundary name="The conversation list"><ConversationList onSelect={() => isPhone() && sidebarOpen.set(false)} /></PartBoundary></SidePanel>}
        <main className="flex min-w-0 flex-1 flex-col">
          <NewVersionBanner />
          <ConnectionBanner />
          <PartBoundary name="The conversation" subject={conversation}><ChatView /></PartBoundary>
        </main>
        {showDetails && <SidePanel side="right" close={closeDetails}><PartBoundary name="The details" subject={conversation}><Details close={closeDetails} /></PartBoundary></SidePanel>}
      </div>
      {showHelp && <ShortcutHelp close={() => helpOpen.set(false)} />}
    </div>
  );
}

function isPhone(): boolean {
  return !matchMedia("(min-width: 48rem)").matches;
}

function closeDetails(): void {
  detailsOpen.set(false);
  localStore.set("details", "closed");
}

function toggleDetails(): void {
  detailsOpen.update((open) => !open);
  localStore.set("details", detailsOpen.get() ? null : "closed");
  if (detailsOpen.get() && isPhone()) sidebarOpen.set(false);
}

/** Next to the conversation if the window is wide enough, else on top of it. */
function SidePanel({ side, close, children }: { side: "left" | "right"; close: () => void; children: ReactNode }): ReactElement {
  const style = side === "left" ? "left-0 w-[min(20rem,88vw)] md:w-68 border-r" : "right-0 w-full sm:w-96 lg:w-88 border-l";
  const inFlow = side === "left" ? "md:static md:shadow-none" : "lg:static lg:shadow-none";
  return (
    <>
      <button type="button" tabIndex={-1} aria-label="Close" onClick={close} className={`absolute inset-0 z-10 bg-black/25 ${side === "left" ? "md:hidden" : "lg:hidden"}`} />
      <div className={`absolute inset-y-0 z-20 shrink-0 border-line shadow-xl ${style} ${inFlow}`}>{children}</div>
    </>
  );
}

function Header(): ReactElement {
  const app = useApp();
  const status = useObservable(app.connectionStatus);
  const conversationId = useObservable(currentRoute).conversationId;
  const session = useObservable(app.sessions)?.get(conversationId ?? "");
  const title = session === undefined ? (parentConversation(conversationId ?? "")?.name ?? "") : titleOf(session);
  useEffect(() => {
    document.title = title === "" ? "magent2" : `${title} · magent2`;
  }, [title]);
  return (
    <header className="flex h-13 shrink-0 items-center gap-1 border-b border-line bg-surface px-2">
      <IconButton icon="menu" text="Conversations" stacked onClick={() => sidebarOpen.update((open) => !open)} />
      <h1 className={`pl-1 font-semibold tracking-tight ${title === "" ? "" : "max-sm:sr-only"}`}>magent2</h1>
      <span className="mx-2 min-w-0 flex-1 truncate pt-px text-sm text-muted">{title}</span>
      <ConnectionBadge status={status} />
      <ThemeButton />
      <IconButton icon="help" text="Shortcuts" label="Keyboard shortcuts" stacked className="max-sm:hidden" onClick={() => helpOpen.set(true)} />
      {app.api.token !== null && <IconButton icon="leave" text="Sign out" stacked onClick={() => app.signOut()} />}
      <IconButton icon="panel" text="Details" stacked onClick={toggleDetails} />
    </header>
  );
}

const CONNECTION_LABELS: Record<ConnectionStatus["state"], { tone: "plain" | "good" | "warn" | "bad"; text: string; about: string }> = {
  connecting: { tone: "plain", text: "Connecting", about: "Connecting to the server" },
  live: { tone: "good", text: "Live", about: "Connected. Updates appear immediately." },
  polling: { tone: "warn", text: "Polling", about: "The page checks for updates regularly, because it cannot keep a stream open." },
  paused: { tone: "warn", text: "Paused", about: "Updates are paused because you were inactive." },
  offline: { tone: "bad", text: "Offline", about: "The server cannot be reached." },
  unauthorized: { tone: "bad", text: "Signed out", about: "The token or key was rejected." },
};

function ConnectionBadge({ status }: { status: ConnectionStatus }): ReactElement {
  const { tone, text, about } = CONNECTION_LABELS[status.state];
  return <span role="status" title={about} className="mr-1"><Badge tone={tone}><span className="size-1.5 rounded-full bg-current" /> {text}</Badge></span>;
}

function NewVersionBanner(): ReactElement | null {
  const app = useApp();
  if (!useObservable(app.outdated)) return null;
  return <Banner tone="bg-accent-soft text-accent-ink" text="A new version of this page is available. Drafts and unsent messages are kept when you reload." action={() => location.reload()} label="Reload" />;
}

function ConnectionBanner(): ReactElement | null {
  const app = useApp();
  const status = useObservable(app.connectionStatus);
  const [isBack, setBack] = useState(false);
  const [before, setBefore] = useState(status.state);
  if (before !== status.state) {
    setBefore(status.state);
    setBack(before === "offline" && status.state === "live");
  }
  useEffect(() => {
    if (!isBack) return;
    const timer = setTimeout(() => setBack(false), 3000);
    return () => clearTimeout(timer);
  }, [isBack]);
  if (status.state === "offline") {
    return <Banner tone="bg-bad-soft text-bad" text="Offline. Your messages are saved and sent when the connection is back." action={() => app.expectUpdates()} label="Retry now" />;
  }
  if (status.state === "paused") return <Banner tone="bg-warn-soft text-warn" text="Updates are paused because you were inactive." action={() => app.expectUpdates()} label="Resume" />;
  return isBack ? <Banner tone="bg-good-soft text-good" text="Back online. No messages were lost." /> : null;
}

function Banner({ tone, text, action, label }: { tone: string; text: string; action?: () => void; label?: string }): ReactElement {
  return (
    <div role="status" className={`flex items-center justify-center gap-3 px-4 py-1.5 text-sm ${tone}`}>
      <span>{text}</span>
      {action && <button type="button" onClick={action} className="font-medium underline">{label}</button>}
    </div>
  );
}

function ThemeButton(): ReactElement {
  const selected = useObservable(theme);
  const next = THEMES[(THEMES.indexOf(selected) + 1) % THEMES.length] ?? "system";
  const icon = { system: "screen", light: "sun", dark: "moon" } as const;
  return <IconButton icon={icon[selected]} text="Theme" label={`Theme: ${selected}. Switch to ${next}`} stacked onClick={() => theme.set(next)} />;
}
