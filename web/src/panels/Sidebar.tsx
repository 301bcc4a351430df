// Conversations: find, begin, rename, delete.
import { type KeyboardEvent, type ReactElement, useEffect, useMemo, useState } from "react";
import type { SessionItem } from "../api/shapes";
import { go, hashOf, place } from "../store/address";
import { useCell } from "../store/cell";
import { useAsked, useDoing } from "../ui/asking";
import { useApp } from "../ui/context";
import { recent } from "../ui/format";
import { Icon } from "../ui/icons";
import { Badge, Failure, Hint, IconButton } from "../ui/parts";

export function Sidebar({ chosen }: { chosen: () => void }): ReactElement {
  const [sought, setSought] = useState("");
  return (
    <nav aria-label="Conversations" className="flex h-full flex-col bg-sunken">
      <div className="flex items-center gap-2 px-3 pt-3 pb-2">
        <label className="flex h-9 min-w-0 flex-1 items-center gap-2 rounded-lg border border-line bg-surface px-2.5 focus-within:border-accent">
          <Icon name="search" size={15} className="text-faint" />
          <input id="search" type="search" value={sought} onChange={(event) => setSought(event.target.value)} aria-label="Search conversations" placeholder="Search" className="min-w-0 flex-1 bg-transparent text-sm outline-none placeholder:text-faint" />
        </label>
        <IconButton icon="plus" label="New conversation" className="border border-line bg-surface" onClick={() => { go(null); chosen(); }} />
      </div>
      <Found sought={sought.trim()} chosen={chosen} />
    </nav>
  );
}

function Found({ sought, chosen }: { sought: string; chosen: () => void }): ReactElement {
  const app = useApp();
  const sessions = useCell(app.sessions);
  const here = useCell(place).conversation;
  const late = useLate(sought);
  const more = useAsked(() => (late === "" ? Promise.resolve(null) : app.api.sessions(late, null)), late);
  const shown = useMemo(() => {
    const live = [...(sessions?.values() ?? [])].filter((one) => matches(one, sought));
    const known = new Set(live.map((one) => one.session_id));
    const found = sought === "" ? [] : (more.value?.sessions ?? []).filter((one) => !known.has(one.session_id) && !app.gone.has(one.session_id) && matches(one, sought));
    return [...live, ...found].sort((a, b) => b.last_active_ms - a.last_active_ms);
  }, [sessions, sought, more.value]);
  if (more.problem) return <div className="p-3"><Failure text={more.problem} again={more.again} /></div>;
  if (sessions === null) return <div aria-hidden="true" className="space-y-2 p-3">{[0, 1, 2].map((n) => <div key={n} className="breathe h-11 rounded-lg bg-surface" />)}</div>;
  if (shown.length === 0) return <Hint>{sought === "" ? "Conversations appear here." : "Nothing found."}</Hint>;
  return (
    <ul className="min-h-0 flex-1 space-y-0.5 overflow-y-auto px-2 pb-3">
      {shown.map((one) => <Entry key={one.session_id} one={one} active={one.session_id === here} chosen={chosen} />)}
    </ul>
  );
}

function matches(one: SessionItem, sought: string): boolean {
  const texts = [nameOf(one), one.last_text ?? "", one.session_id].join("\n").toLowerCase();
  return texts.includes(sought.toLowerCase());
}

/** The last message, where that is not what the conversation is called by. */
function gistOf(one: SessionItem): string {
  return one.last_text === null || one.last_text === one.title ? "" : one.last_text;
}

export function nameOf(one: SessionItem): string {
  return one.title?.split("\n")[0]?.replace(/^#+\s*/, "") || one.session_id;
}

const PAUSE_MS = 250;

/** A text once it has stopped changing. */
function useLate(text: string): string {
  const [late, setLate] = useState(text);
  useEffect(() => {
    const timer = setTimeout(() => setLate(text), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return late;
}

function Entry({ one, active, chosen }: { one: SessionItem; active: boolean; chosen: () => void }): ReactElement {
  const [mode, setMode] = useState<"shown" | "renaming" | "deleting">("shown");
  if (mode === "renaming") return <Renaming one={one} done={() => setMode("shown")} />;
  if (mode === "deleting") return <Deleting one={one} active={active} done={() => setMode("shown")} />;
  const running = one.run_status === "started" || one.run_status === "restarted" || one.run_status === "running";
  return (
    <li className={`group relative rounded-lg ${active ? "bg-surface shadow-xs" : "hover:bg-surface/70"}`}>
      <a href={hashOf(one.session_id)} aria-current={active ? "page" : undefined} onClick={chosen} className="block px-3 py-2 [@media(hover:none)]:pr-16">
        <span className={`block truncate text-sm ${active ? "font-medium" : ""}`}>{nameOf(one)}</span>
        {gistOf(one) !== "" && <span className="block truncate text-xs text-muted">{gistOf(one)}</span>}
        <span className="flex items-center gap-1.5 text-xs text-faint">
          {one.approvals > 0 ? <Badge tone="strong">Waits for you</Badge> : running && <><span className="size-1.5 rounded-full bg-accent" /><span className="sr-only">running</span></>}
          <span className="truncate">{one.active_agent_id ?? "no agent"}</span><span>·</span><span className="shrink-0">{recent(one.last_active_ms, Date.now())}</span>
        </span>
      </a>
      <div className="absolute top-1/2 right-1 flex -translate-y-1/2 rounded-lg bg-surface opacity-0 transition-opacity group-hover:opacity-100 group-focus-within:opacity-100 [@media(hover:none)]:opacity-100">
        <IconButton icon="edit" label={`Rename ${nameOf(one)}`} size={15} className="size-7!" onClick={() => setMode("renaming")} />
        <IconButton icon="trash" label={`Delete ${nameOf(one)}`} size={15} className="size-7!" onClick={() => setMode("deleting")} />
      </div>
    </li>
  );
}

function Renaming({ one, done }: { one: SessionItem; done: () => void }): ReactElement {
  const app = useApp();
  const [title, setTitle] = useState(nameOf(one));
  const { busy, problem, run } = useDoing();
  const save = (): void => {
    void run(() => app.api.rename(one.session_id, title.trim())).then((saved) => saved && done());
  };
  const press = (event: KeyboardEvent): void => {
    if (event.key === "Enter") save();
    if (event.key === "Escape") done();
  };
  return (
    <li className="rounded-lg bg-surface p-2">
      <div className="flex gap-1">
        <input autoFocus maxLength={200} value={title} disabled={busy} onChange={(event) => setTitle(event.target.value)} onKeyDown={press} aria-label="New title" className="min-w-0 flex-1 rounded-md border border-line bg-transparent px-2 py-1 text-sm" />
        <IconButton icon="check" label="Save title" size={15} className="size-8!" disabled={busy} onClick={save} />
        <IconButton icon="close" label="Keep the old title" size={15} className="size-8!" onClick={done} />
      </div>
      {problem && <p role="alert" className="mt-1 text-xs text-bad">{problem}</p>}
    </li>
  );
}

function Deleting({ one, active, done }: { one: SessionItem; active: boolean; done: () => void }): ReactElement {
  const app = useApp();
  const { busy, problem, run } = useDoing();
  const remove = (): void => {
    void run(() => app.remove(one.session_id)).then((gone) => {
      if (!gone) return;
      if (active) go(null);
      app.hurry();
      done();
    });
  };
  return (
    <li className="rounded-lg bg-bad-soft p-2.5 text-sm">
      <p className="text-bad wrap-anywhere">Delete “{nameOf(one)}” and all its text?</p>
      <div className="mt-2 flex gap-2">
        <button type="button" autoFocus disabled={busy} onClick={remove} className="rounded-md bg-bad px-2.5 py-1 font-medium text-page">Delete</button>
        <button type="button" onClick={done} className="rounded-md border border-line bg-surface px-2.5 py-1">Keep</button>
      </div>
      {problem && <p role="alert" className="mt-1 text-xs text-bad">{problem}</p>}
    </li>
  );
}
