// Announces changes to screen readers: which agent is working, finished answers, approvals that are needed.
import { type ReactElement, useEffect, useRef, useState } from "react";
import { activeRun, type LogItem, type SessionState } from "../fold/state";

const SPOKEN_MAX_CHARS = 600;
const LINES_MAX = 4; // kept on the page, so that two announcements in quick succession are both read
const ITEMS_CHECKED = 8; // the last items of the log; older ones have been announced

/** `fresh`: the conversation is new, so that everything in it is announced. */
export function Announcer({ session, fresh }: { session: SessionState; fresh: boolean }): ReactElement {
  const [shown, setShown] = useState<readonly Announcement[]>([]);
  const announced = useRef<Set<string> | null>(fresh ? new Set() : null);
  useEffect(() => {
    if (session.eventCount === 0) return;
    const before = announced.current;
    const lines = session.items.slice(-ITEMS_CHECKED).flatMap(announcementsFor);
    const run = activeRun(session);
    if (run !== null) lines.push({ key: run.id, text: `${run.agent ?? "The agent"} is working.` });
    announced.current = new Set([...(before ?? []), ...lines.map((line) => line.key)]);
    if (before === null) return; // the log that was loaded can be read; only changes are announced
    const added = lines.filter((line) => !before.has(line.key));
    if (added.length > 0) setShown((kept) => [...kept, ...added].slice(-LINES_MAX));
  }, [session]);
  return (
    <div aria-live="polite" aria-relevant="additions" className="sr-only">
      {shown.map((line) => <p key={line.key}>{line.text}</p>)}
    </div>
  );
}

const FAILURE_TEXTS = {
  retrying: "The run failed and is retried.",
  failed: "The run failed.",
  recovered: "The retry succeeded.",
  stopped: "The retries were stopped.",
};

interface Announcement {
  key: string;
  text: string;
}

function announcementsFor(item: LogItem): Announcement[] {
  const { key } = item;
  switch (item.kind) {
    case "answer": return item.streaming ? [] : [{ key, text: `${item.agent ?? "Agent"}: ${item.text.slice(0, SPOKEN_MAX_CHARS)}` }];
    case "handoff": return [{ key, text: `Handed off to ${item.to}.` }];
    case "approval": return item.status === "pending"
      ? [{ key, text: `${item.agent ?? "An agent"} needs approval to run ${item.tool}.` }]
      : [{ key: `${key}/${item.status}`, text: `${item.tool}: ${item.status}.` }];
    case "budget": return item.status === "waiting" ? [{ key, text: `${item.agent ?? "An agent"} waits: its budget is used up.` }] : [];
    case "subagent": return [{ key, text: `${item.agent ?? "An agent"} started ${item.name}.` }];
    case "notice": return [{ key, text: item.text }];
    case "failure": return [{ key: `${key}/${item.status}`, text: FAILURE_TEXTS[item.status] }];
    case "tool": return item.status === "error" ? [{ key, text: `${item.name} failed.` }] : [];
    case "user": return [];
  }
}
