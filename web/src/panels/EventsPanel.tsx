// The raw events of the conversation. Only visible lines are in the document.
import { useVirtualizer } from "@tanstack/react-virtual";
import { type ReactElement, useMemo, useRef, useState } from "react";
import type { SessionEvent } from "../api/types";
import { useObservable } from "../store/observable";
import { CopyButton, Hint, LongText } from "../ui/common";
import { formatJson, formatNumber, plural } from "../ui/format";
import type { PanelProps } from "./Details";

const LINE_PX = 30;

export function EventsPanel({ conversation, session: observable }: PanelProps): ReactElement {
  const session = useObservable(observable);
  const [tokens, setTokens] = useState(false);
  const [open, setOpen] = useState<number | null>(null);
  const events = useMemo(() => (conversation?.rawEvents ?? []).filter((event) => tokens || event.type !== "token"), [conversation, session, tokens]);
  if (conversation === null || session.eventCount === 0) return <Hint>No events yet.</Hint>;
  const selected = events.find((event) => event.seq === open);
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <label className="flex items-center gap-2 px-4 py-1.5 text-sm text-muted">
        <input type="checkbox" checked={tokens} onChange={(event) => setTokens(event.target.checked)} /> Show tokens
        <span className="ml-auto text-xs text-faint tabular-nums">{plural(events.length, "event")}</span>
      </label>
      <EventList events={events} open={open} choose={setOpen} />
      {selected && <EventJson event={selected} />}
    </div>
  );
}

function EventList({ events, open, choose }: { events: readonly SessionEvent[]; open: number | null; choose: (seq: number | null) => void }): ReactElement {
  const frame = useRef<HTMLDivElement>(null);
  const lines = useVirtualizer({ count: events.length, getScrollElement: () => frame.current, estimateSize: () => LINE_PX, overscan: 12, anchorTo: "end", followOnAppend: true });
  return (
    <div ref={frame} tabIndex={0} role="region" aria-label="Events" className="min-h-40 flex-1 overflow-y-auto">
      <div className="relative" style={{ height: lines.getTotalSize() }}>
        {lines.getVirtualItems().map(({ index, start }) => {
          const event = events[index];
          return event === undefined ? null : (
            <button
              key={event.seq} type="button" aria-pressed={event.seq === open} onClick={() => choose(event.seq === open ? null : event.seq)}
              className={`absolute inset-x-0 top-0 flex items-center gap-2 px-4 text-left font-mono text-xs ${event.seq === open ? "bg-accent-soft" : "hover:bg-sunken"}`}
              style={{ height: LINE_PX, transform: `translateY(${start}px)` }}
            >
              <span className="w-10 shrink-0 text-right text-faint tabular-nums">{formatNumber(event.seq)}</span>
              <span className="w-24 shrink-0 truncate text-accent-ink">{event.type}</span>
              <span className="truncate text-muted">{summarize(event)}</span>
            </button>
          );
        })}
      </div>
    </div>
  );
}

function summarize(event: SessionEvent): string {
  const name = event.data["name"] ?? event.data["status"] ?? "";
  return [event.agent_id, typeof name === "string" ? name : "", event.text ?? event.reason ?? ""].filter(Boolean).join(" · ").slice(0, 160);
}

function EventJson({ event }: { event: SessionEvent }): ReactElement {
  const text = formatJson(event);
  return (
    <div className="max-h-[45%] shrink-0 overflow-auto border-t border-line bg-sunken p-3" tabIndex={0} role="region" aria-label={`Event ${event.seq}`}>
      <div className="float-right"><CopyButton text={() => text} label="Copy event" /></div>
      <pre className="font-mono text-xs whitespace-pre-wrap wrap-anywhere"><LongText text={text} /></pre>
    </div>
  );
}
