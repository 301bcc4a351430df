// The list of conversations: search, filter, start, rename, delete.
import { type KeyboardEvent, type ReactElement, type UIEvent, useEffect, useMemo, useRef, useState } from "react";
import { SESSIONS_PAGE } from "../api/client";
import type { SessionCounts, SessionState, SessionSummary } from "../api/types";
import { useObservable } from "../store/observable";
import { conversationHash, currentRoute, navigate } from "../store/route";
import { countStates, SESSION_STATES, stateOf } from "../store/sessions";
import { Badge, Button, ErrorMessage, Hint, IconButton } from "../ui/common";
import { useApp, useIsStale } from "../ui/context";
import { formatNumber, formatRecent } from "../ui/format";
import { Icon } from "../ui/icons";
import { useAction } from "../ui/requests";

export function ConversationList({ onSelect }: { onSelect: () => void }): ReactElement {
  const [query, setQuery] = useState("");
  const [filter, setFilter] = useState<SessionState | null>(null);
  return (
    <nav aria-label="Conversations" className="flex h-full flex-col bg-sunken">
      <div className="space-y-2 px-3 pt-3 pb-2">
        <IconButton icon="plus" text="New conversation" className="w-full border border-line bg-surface font-medium text-ink!" onClick={() => { navigate(null); onSelect(); }} />
        <label className="flex h-9 items-center gap-2 rounded-lg border border-line bg-surface px-2.5 focus-within:border-accent">
          <Icon name="search" size={15} className="text-faint" />
          <input id="search" type="search" value={query} onChange={(event) => setQuery(event.target.value)} aria-label="Search conversations" placeholder="Search" className="min-w-0 flex-1 bg-transparent text-sm outline-none placeholder:text-faint" />
        </label>
        <StateFilter selected={filter} select={setFilter} />
      </div>
      <SearchResults query={query.trim()} filter={filter} onSelect={onSelect} />
    </nav>
  );
}

const STATE_LABELS: Record<SessionState, string> = { waiting: "Waiting", running: "Running", failed: "Failed" };

/** Buttons that show only conversations in a state, with their number. Pressing a button again shows all. */
function StateFilter({ selected, select }: { selected: SessionState | null; select: (state: SessionState | null) => void }): ReactElement {
  const counts = useCounts();
  const stale = useIsStale();
  return (
    <div role="group" aria-label="Show only" className="flex gap-1">
      {SESSION_STATES.map((state) => (
        <button
          key={state} type="button" aria-pressed={state === selected} onClick={() => select(state === selected ? null : state)}
          className={`inline-flex h-7 min-w-0 flex-1 items-center justify-center gap-1 rounded-lg border px-1 text-xs font-medium ${state === selected ? "border-accent bg-accent-soft text-accent-ink" : "border-line bg-surface text-muted hover:text-ink"}`}
        >
          {STATE_LABELS[state]} {counts !== null && !stale && <span className={`tabular-nums ${counts[state] > 0 && state === "waiting" ? "rounded-full bg-accent px-1.5 text-white" : ""}`}>{formatNumber(counts[state])}{!counts.complete && "+"}</span>}
        </button>
      ))}
    </div>
  );
}

const COUNTS_INTERVAL_MS = 5_000; // between two requests for the counts

/** The number of conversations by state. The server counts if there are more than the page has. */
function useCounts(): SessionCounts | null {
  const app = useApp();
  const sessions = useObservable(app.sessions);
  const isComplete = sessions !== null && sessions.size < SESSIONS_PAGE;
  const [counted, setCounted] = useState<SessionCounts | null>(null);
  const lastAt = useRef(0);
  useEffect(() => {
    if (sessions === null || isComplete) return;
    const timer = setTimeout(() => {
      lastAt.current = Date.now();
      app.api.sessionCounts().then(setCounted, () => setCounted(null)); // without an answer, no number is shown
    }, Math.max(0, lastAt.current + COUNTS_INTERVAL_MS - Date.now()));
    return () => clearTimeout(timer);
  }, [sessions, isComplete]);
  return useMemo(() => (isComplete ? countStates(sessions.values()) : counted), [sessions, isComplete, counted]);
}

function SearchResults({ query, filter, onSelect }: { query: string; filter: SessionState | null; onSelect: () => void }): ReactElement {
  const app = useApp();
  const sessions = useObservable(app.sessions);
  const current = useObservable(currentRoute).conversationId;
  const pages = usePages(useDebounced(query), filter);
  const shown = useMemo(() => {
    const found = [...(sessions?.values() ?? [])].filter((session) => (filter === null || stateOf(session) === filter) && matches(session, query));
    return found.sort((a, b) => b.last_active_ms - a.last_active_ms);
  }, [sessions, query, filter]);
  if (sessions === null) return <div aria-hidden="true" className="space-y-2 p-3">{[0, 1, 2].map((n) => <div key={n} className="pulse-slow h-11 rounded-lg bg-surface" />)}</div>;
  const onScroll = ({ currentTarget: list }: UIEvent): void => {
    if (list.scrollHeight - list.scrollTop - list.clientHeight < NEAR_END_PX) pages.loadMore();
  };
  return (
    <div className="min-h-0 flex-1 overflow-y-auto px-2 pb-3" onScroll={onScroll}>
      <ul className="space-y-0.5">
        {shown.map((session) => <Entry key={session.session_id} session={session} active={session.session_id === current} onSelect={onSelect} />)}
      </ul>
      {shown.length === 0 && !pages.busy && <Hint>{query === "" && filter === null ? "No conversations yet." : "No conversations found."}</Hint>}
      {pages.error !== null && <div className="p-1"><ErrorMessage text={pages.error} retry={pages.loadMore} /></div>}
      {pages.hasMore && pages.error === null && <Button className="mt-2 w-full" disabled={pages.busy} onClick={pages.loadMore}>{pages.busy ? "Loading…" : "Show more conversations"}</Button>}
    </div>
  );
}

const NEAR_END_PX = 300;

interface Pages {
  hasMore: boolean;
  busy: boolean;
  error: string | null;
  loadMore: () => void;
}

/** Loads the list page by page. The first page of a search or a filter is loaded at once; else the stream has it. */
function usePages(q: string, state: SessionState | null): Pages {
  const app = useApp();
  const sessions = useObservable(app.sessions);
  const key = `${state ?? ""} ${q}`;
  const [loaded, setLoaded] = useState<{ key: string; next: string | null }>({ key: "", next: null });
  const { busy, error, run } = useAction();
  const before = loaded.key === key ? loaded.next : null;
  const isFiltered = q !== "" || state !== null;
  const load = (cursor: string | null): void => {
    void run(async () => {
      const known = app.sessions.get()?.size;
      let next = cursor;
      do next = await app.loadSessions({ q, state, before: next });
      while (!isFiltered && next !== null && app.sessions.get()?.size === known); // the stream has sent the first pages
      setLoaded({ key, next });
    });
  };
  useEffect(() => {
    if (isFiltered) load(null);
  }, [key]);
  const hasMore = loaded.key === key ? loaded.next !== null : !isFiltered && (sessions?.size ?? 0) >= SESSIONS_PAGE;
  return { hasMore, busy, error, loadMore: () => hasMore && !busy && load(before) };
}

function matches(session: SessionSummary, query: string): boolean {
  const texts = [titleOf(session), session.last_text ?? "", session.session_id].join("\n").toLowerCase();
  return texts.includes(query.toLowerCase());
}

/** The last message, unless it is also the title. */
function lastMessageOf(session: SessionSummary): string {
  return session.last_text === null || session.last_text === session.title ? "" : session.last_text;
}

export function titleOf(session: SessionSummary): string {
  return session.title?.split("\n")[0]?.replace(/^#+\s*/, "") || session.session_id;
}

const DEBOUNCE_MS = 250;

/** The text once it has stopped changing for a moment. */
function useDebounced(text: string): string {
  const [settled, setSettled] = useState(text);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(text), DEBOUNCE_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return settled;
}

function Entry({ session, active, onSelect }: { session: SessionSummary; active: boolean; onSelect: () => void }): ReactElement {
  const [mode, setMode] = useState<"shown" | "renaming" | "deleting">("shown");
  if (mode === "renaming") return <RenameForm session={session} done={() => setMode("shown")} />;
  if (mode === "deleting") return <DeletePrompt session={session} active={active} done={() => setMode("shown")} />;
  return (
    <li className={`group relative rounded-lg [contain-intrinsic-size:auto_4rem] [content-visibility:auto] ${active ? "bg-surface shadow-xs" : "hover:bg-surface/70"}`}>
      <a href={conversationHash(session.session_id)} aria-current={active ? "page" : undefined} onClick={onSelect} className="block px-3 py-2">
        <span className={`block truncate text-sm ${active ? "font-medium" : ""}`}>{titleOf(session)}</span>
        {lastMessageOf(session) !== "" && <span className="block truncate text-xs text-muted">{lastMessageOf(session)}</span>}
        <span className="flex items-center gap-1.5 text-xs text-faint">
          <StateBadge state={stateOf(session)} needs={needOf(session)} />
          <span className="truncate">{session.active_agent_id ?? "no agent"}</span><span>·</span><span className="shrink-0">{formatRecent(session.last_active_ms, Date.now())}</span>
        </span>
      </a>
      <div className="absolute right-1 bottom-1 flex rounded-lg bg-surface opacity-0 transition-opacity group-hover:opacity-100 group-focus-within:opacity-100 [@media(hover:none)]:opacity-100">
        <button type="button" aria-label={`Rename ${titleOf(session)}`} onClick={() => setMode("renaming")} className="rounded-md px-1.5 py-0.5 text-xs text-muted hover:text-ink hover:underline">Rename</button>
        <button type="button" aria-label={`Delete ${titleOf(session)}`} onClick={() => setMode("deleting")} className="rounded-md px-1.5 py-0.5 text-xs text-muted hover:text-ink hover:underline">Delete</button>
      </div>
    </li>
  );
}

/** What a run that waits needs. A person can give approval and budget; the outputs of tools come from the client. */
function needOf(session: SessionSummary): string {
  if (session.budget) return "Needs budget";
  return session.approvals > 0 ? "Needs approval" : "Waits for its client";
}

function StateBadge({ state, needs }: { state: SessionState | null; needs: string }): ReactElement | null {
  const stale = useIsStale();
  if (state === "waiting") return <Badge tone="strong">{needs}</Badge>;
  if (state === "failed") return <Badge tone="bad">Failed</Badge>;
  return state === "running" && !stale ? <Badge tone="accent">Working</Badge> : null;
}

function RenameForm({ session, done }: { session: SessionSummary; done: () => void }): ReactElement {
  const app = useApp();
  const [title, setTitle] = useState(titleOf(session));
  const { busy, error, run } = useAction();
  const save = (): void => {
    void run(() => app.api.renameSession(session.session_id, title.trim())).then((saved) => saved && done());
  };
  const press = (event: KeyboardEvent): void => {
    if (event.key === "Enter") save();
    if (event.key === "Escape") done();
  };
  return (
    <li className="rounded-lg bg-surface p-2">
      <input autoFocus maxLength={200} value={title} disabled={busy} onChange={(event) => setTitle(event.target.value)} onKeyDown={press} aria-label="New title" className="w-full rounded-md border border-line bg-transparent px-2 py-1 text-sm" />
      <div className="mt-2 flex gap-2">
        <Button tone="strong" className="py-1!" disabled={busy} onClick={save}>Save</Button>
        <Button className="py-1!" onClick={done}>Cancel</Button>
      </div>
      {error && <p role="alert" className="mt-1 text-xs text-bad">{error}</p>}
    </li>
  );
}

function DeletePrompt({ session, active, done }: { session: SessionSummary; active: boolean; done: () => void }): ReactElement {
  const app = useApp();
  const { busy, error, run } = useAction();
  const remove = (): void => {
    void run(() => app.deleteSession(session.session_id)).then((deleted) => {
      if (!deleted) return;
      if (active) navigate(null);
      app.expectUpdates();
      done();
    });
  };
  return (
    <li className="rounded-lg bg-bad-soft p-2.5 text-sm">
      <p className="text-bad wrap-anywhere">Delete “{titleOf(session)}”? This cannot be undone.</p>
      <div className="mt-2 flex gap-2">
        <button type="button" autoFocus disabled={busy} onClick={remove} className="rounded-md bg-bad px-2.5 py-1 font-medium text-page">Delete</button>
        <button type="button" onClick={done} className="rounded-md border border-line bg-surface px-2.5 py-1">Cancel</button>
      </div>
      {error && <p role="alert" className="mt-1 text-xs text-bad">{error}</p>}
    </li>
  );
}
