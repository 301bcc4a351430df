// The frame: conversations, the conversation, details. On a phone one of them at a time.
import { type ReactElement, type ReactNode, useEffect, useState } from "react";
import { ChatView } from "../chat/ChatView";
import { Inspector } from "../panels/Inspector";
import { nameOf, Sidebar } from "../panels/Sidebar";
import { place } from "../store/address";
import { Cell, useCell } from "../store/cell";
import { parentOf } from "../store/children";
import { kept } from "../store/kept";
import type { LinkState } from "../transport/protocol";
import { useApp } from "./context";
import { Help } from "./Help";
import { heedKeys } from "./keys";
import { Badge, IconButton } from "./parts";
import { THEMES, theme } from "./theme";

const WIDE = "(min-width: 64rem)";
const left = new Cell(matchMedia("(min-width: 48rem)").matches);
const right = new Cell(matchMedia(WIDE).matches && kept.get("details") !== "closed");
const help = new Cell(false);

export function Shell(): ReactElement {
  const leftOpen = useCell(left);
  const rightOpen = useCell(right);
  const helping = useCell(help);
  useEffect(() => heedKeys({ help: () => help.set(true), conversations: () => left.set(true) }), []);
  return (
    <div className="flex h-full flex-col">
      <a href="#composer" onClick={(event) => { event.preventDefault(); document.getElementById("composer")?.focus(); }} className="sr-only focus:not-sr-only focus:absolute focus:z-50 focus:m-2 focus:rounded-lg focus:bg-raised focus:px-3 focus:py-2">Skip to the message box</a>
      <Header />
      <div className="relative flex min-h-0 flex-1">
        {leftOpen && <Side side="left" close={() => left.set(false)}><Sidebar chosen={() => isPhone() && left.set(false)} /></Side>}
        <main className="flex min-w-0 flex-1 flex-col">
          <Outdated />
          <Offline />
          <ChatView />
        </main>
        {rightOpen && <Side side="right" close={closeRight}><Inspector close={closeRight} /></Side>}
      </div>
      {helping && <Help close={() => help.set(false)} />}
    </div>
  );
}

function isPhone(): boolean {
  return !matchMedia("(min-width: 48rem)").matches;
}

function closeRight(): void {
  right.set(false);
  kept.set("details", "closed");
}

function toggleRight(): void {
  right.update((open) => !open);
  kept.set("details", right.get() ? null : "closed");
  if (right.get() && isPhone()) left.set(false);
}

/** Beside the conversation where there is room, above it where there is not. */
function Side({ side, close, children }: { side: "left" | "right"; close: () => void; children: ReactNode }): ReactElement {
  const look = side === "left" ? "left-0 w-[min(20rem,88vw)] md:w-68 border-r" : "right-0 w-full sm:w-96 lg:w-88 border-l";
  const still = side === "left" ? "md:static md:shadow-none" : "lg:static lg:shadow-none";
  return (
    <>
      <button type="button" tabIndex={-1} aria-label="Close" onClick={close} className={`absolute inset-0 z-10 bg-black/25 ${side === "left" ? "md:hidden" : "lg:hidden"}`} />
      <div className={`absolute inset-y-0 z-20 shrink-0 border-line shadow-xl ${look} ${still}`}>{children}</div>
    </>
  );
}

function Header(): ReactElement {
  const app = useApp();
  const link = useCell(app.link);
  const here = useCell(place).conversation;
  const known = useCell(app.sessions)?.get(here ?? "");
  const title = known === undefined ? (parentOf(here ?? "")?.name ?? "") : nameOf(known);
  useEffect(() => {
    document.title = title === "" ? "magent2" : `${title} · magent2`;
  }, [title]);
  return (
    <header className="flex h-13 shrink-0 items-center gap-1 border-b border-line bg-surface px-2">
      <IconButton icon="menu" label="Conversations" onClick={() => left.update((open) => !open)} />
      <h1 className={`pl-1 font-semibold tracking-tight ${title === "" ? "" : "max-sm:sr-only"}`}>magent2</h1>
      <span className="mx-2 min-w-0 flex-1 truncate pt-px text-sm text-muted">{title}</span>
      <Connection link={link} />
      <ThemeButton />
      <IconButton icon="help" label="Keyboard help" className="max-sm:hidden" onClick={() => help.set(true)} />
      {app.api.token !== null && <IconButton icon="leave" label="Sign out" onClick={() => app.forgetToken()} />}
      <IconButton icon="panel" label="Details" onClick={toggleRight} />
    </header>
  );
}

const LINKS: Record<LinkState["is"], { tone: "plain" | "good" | "warn" | "bad"; text: string; about: string }> = {
  connecting: { tone: "plain", text: "Connecting", about: "Opening the stream" },
  live: { tone: "good", text: "Live", about: "Everything arrives as it happens" },
  polling: { tone: "warn", text: "Polling", about: "Streams do not get through; the page asks for news" },
  paused: { tone: "warn", text: "Paused", about: "Nobody was here for a while" },
  offline: { tone: "bad", text: "Offline", about: "The server cannot be reached" },
  unauthorized: { tone: "bad", text: "Signed out", about: "The key was refused" },
};

function Connection({ link }: { link: LinkState }): ReactElement {
  const { tone, text, about } = LINKS[link.is];
  return <span role="status" title={about} className="mr-1"><Badge tone={tone}><span className="size-1.5 rounded-full bg-current" /> {text}</Badge></span>;
}

/** What is written and not sent yet outlives a reload. */
function Outdated(): ReactElement | null {
  const app = useApp();
  if (!useCell(app.outdated)) return null;
  return <Strip tone="bg-accent-soft text-accent-ink" text="The server has a newer page than this one. Nothing is lost by a reload." action={() => location.reload()} label="Reload" />;
}

function Offline(): ReactElement | null {
  const app = useApp();
  const link = useCell(app.link);
  const [back, setBack] = useState(false);
  const [was, setWas] = useState(link.is);
  if (was !== link.is) {
    setWas(link.is);
    setBack(was === "offline" && link.is === "live");
  }
  useEffect(() => {
    if (!back) return;
    const timer = setTimeout(() => setBack(false), 3000);
    return () => clearTimeout(timer);
  }, [back]);
  if (link.is === "offline") {
    return <Strip tone="bg-bad-soft text-bad" text="Offline. What you send is kept and goes out once, when the server is back." action={() => app.hurry()} label="Try now" />;
  }
  if (link.is === "paused") return <Strip tone="bg-warn-soft text-warn" text="Paused, as nobody was here." action={() => app.hurry()} label="Go on" />;
  return back ? <Strip tone="bg-good-soft text-good" text="Back online. Nothing was lost." /> : null;
}

function Strip({ tone, text, action, label }: { tone: string; text: string; action?: () => void; label?: string }): ReactElement {
  return (
    <div role="status" className={`flex items-center justify-center gap-3 px-4 py-1.5 text-sm ${tone}`}>
      <span>{text}</span>
      {action && <button type="button" onClick={action} className="font-medium underline">{label}</button>}
    </div>
  );
}

function ThemeButton(): ReactElement {
  const chosen = useCell(theme);
  const next = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length] ?? "system";
  const icon = { system: "screen", light: "sun", dark: "moon" } as const;
  return <IconButton icon={icon[chosen]} label={`Theme: ${chosen}. Change to ${next}`} onClick={() => theme.set(next)} />;
}
