// The list of conversations: search, start, rename, delete.
import { type KeyboardEvent, type ReactElement, useEffect, useMemo, useState } from "react";
import type { SessionSummary } from "../api/types";
import { useObservable } from "../store/observable";
import { conversationHash, currentRoute, navigate } from "../store/route";
import { Badge, Button, ErrorMessage, Hint, IconButton } from "../ui/common";
import { useApp } from "../ui/context";
import { formatRecent } from "../ui/format";
import { Icon } from "../ui/icons";
import { useAction, useQuery } from "../ui/requests";

export function ConversationList({ onSelect }: { onSelect: () => void }): ReactElement {
  const [query, setQuery] = useState("");
  return (
    <nav aria-label="Conversations" className="flex h-full flex-col bg-sunken">
      <div className="space-y-2 px-3 pt-3 pb-2">
        <IconButton icon="plus" text="New conversation" className="w-full border border-line bg-surface font-medium text-ink!" onClick={() => { navigate(null); onSelect(); }} />
        <label className="flex h-9 items-center gap-2 rounded-lg border border-line bg-surface px-2.5 focus-within:border-accent">
          <Icon name="search" size={15} className="text-faint" />
          <input id="search" type="search" value={query} onChange={(event) => setQuery(event.target.value)} aria-label="Search conversations" placeholder="Search" className="min-w-0 flex-1 bg-transparent text-sm outline-none placeholder:text-faint" />
        </label>

      </div>
      <SearchResults query={query.trim()} onSelect={onSelect} />
    </nav>
  );
}

function SearchResults({ query, onSelect }: { query: string; onSelect: () => void }): ReactElement {
  const app = useApp();
  const sessions = useObservable(app.sessions);
  const current = useObservable(currentRoute).conversationId;
  const searched = useDebounced(query);
  const search = useQuery(() => (searched === "" ? Promise.resolve(null) : app.api.sessions(searched, null)), searched);
  const shown = useMemo(() => {
    const live = [...(sessions?.values() ?? [])].filter((session) => matches(session, query));
    const liveIds = new Set(live.map((session) => session.session_id));
    const found = query === "" ? [] : (search.value?.sessions ?? []).filter((session) => !liveIds.has(session.session_id) && !app.deletedIds.has(session.session_id) && matches(session, query));
    return [...live, ...found].sort((a, b) => b.last_active_ms - a.last_active_ms);
  }, [sessions, query, search.value]);
  if (search.error) return <div className="p-3"><ErrorMessage text={search.error} retry={search.reload} /></div>;
  if (sessions === null) return <div aria-hidden="true" className="space-y-2 p-3">{[0, 1, 2].map((n) => <div key={n} className="pulse-slow h-11 rounded-lg bg-surface" />)}</div>;
  if (shown.length === 0) return <Hint>{query === "" ? "No conversations yet." : "No conversations found."}</Hint>;
  return (
    <ul className="min-h-0 flex-1 space-y-0.5 overflow-y-auto px-2 pb-3">
      {shown.map((session) => <Entry key={session.session_id} session={session} active={session.session_id === current} onSelect={onSelect} />)}
    </ul>
  );
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
  const running = session.run_status === "started" || session.run_status === "restarted" || session.run_status === "running";
  return (
    <li className={`group relative rounded-lg ${active ? "bg-surface shadow-xs" : "hover:bg-surface/70"}`}>
      <a href={conversationHash(session.session_id)} aria-current={active ? "page" : undefined} onClick={onSelect} className="block px-3 py-2">
        <span className={`block truncate text-sm ${active ? "font-medium" : ""}`}>{titleOf(session)}</span>
        {lastMessageOf(session) !== "" && <span className="block truncate text-xs text-muted">{lastMessageOf(session)}</span>}
        <span className="flex items-center gap-1.5 text-xs text-faint">
          {session.approvals > 0 ? <Badge tone="strong">Needs approval</Badge> : running && <Badge tone="accent">Working</Badge>}
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
