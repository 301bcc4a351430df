// Messages to external services and their delivery state; for admins.
import { type ReactElement, useState } from "react";
import type { OutboxItem } from "../api/types";
import { conversationHash } from "../store/route";
import { Badge, Button, ErrorMessage, Hint } from "../ui/common";
import { useApp } from "../ui/context";
import { formatDateTime, plural } from "../ui/format";
import { useQuery } from "../ui/requests";
import { RetryOrDrop } from "./RetryOrDrop";

const SHOWN_MAX = 100; // of the last thousand that the server returns
const STATES: Record<OutboxItem["state"], { tone: "plain" | "accent" | "good" | "warn" | "bad"; label: string }> = {
  waiting: { tone: "accent", label: "Waiting" },
  begun: { tone: "accent", label: "Sending" },
  sent: { tone: "good", label: "Sent" },
  dead: { tone: "bad", label: "Failed" },
  unknown: { tone: "warn", label: "Outcome unknown" },
  dropped: { tone: "plain", label: "Dropped" },
};

function needsAttention(item: OutboxItem): boolean {
  return item.state === "dead" || item.state === "unknown";
}

export default function OutboxPanel(): ReactElement {
  const app = useApp();
  const [all, setAll] = useState(false);
  const { value, error, reload } = useQuery(() => app.api.outbox(), "outbox");
  if (error) return <div className="p-3"><ErrorMessage text={error} retry={reload} /></div>;
  if (value === null) return <Hint>Loading…</Hint>;
  const open = value.items.filter(needsAttention);
  const shown = (all ? value.items : open).slice(-SHOWN_MAX).reverse();
  return (
    <div className="space-y-2 p-3">
      <Button className="w-full" onClick={reload}>Refresh</Button>
      <label className="flex items-center gap-2 px-1 text-sm text-muted">
        <input type="checkbox" checked={all} onChange={(event) => setAll(event.target.checked)} /> Show all
        <span className="ml-auto text-xs text-faint">{open.length === 0 ? "Nothing needs attention" : `${open.length} of ${value.items.length} ${open.length === 1 ? "needs" : "need"} attention`}</span>
      </label>
      {shown.length === 0 && <Hint>{value.items.length === 0 ? "No outgoing messages yet." : "All messages were delivered or dropped."}</Hint>}
      <ul aria-label="Outbox" className="space-y-2">{shown.map((item) => <Entry key={`${item.connector}/${item.id}`} item={item} onChange={reload} />)}</ul>
    </div>
  );
}

function Entry({ item, onChange }: { item: OutboxItem; onChange: () => void }): ReactElement {
  const app = useApp();
  const { tone, label } = STATES[item.state];
  const link = <a className="ml-auto text-xs text-accent-ink underline" href={conversationHash(item.conversation_id)}>Open conversation</a>;
  return (
    <li className="rounded-xl border border-line p-3 text-sm">
      <div className="flex items-center gap-2">
        <span className="min-w-0 flex-1 truncate"><strong className="font-medium">{item.connector}</strong> to {item.target}</span>
        <Badge tone={tone}>{label}</Badge>
      </div>
      <p className="mt-1 text-xs text-faint">{formatDateTime(item.at_ms)}, {plural(item.tries, "attempt")}</p>
      {item.reason !== null && <p className={`mt-1 text-xs wrap-anywhere ${needsAttention(item) ? "text-bad" : "text-muted"}`}>{item.reason}</p>}
      {needsAttention(item) ? (
        <RetryOrDrop retry={() => app.api.retryOutboxItem(item)} drop={() => app.api.dropOutboxItem(item)} onChange={onChange} warning="Drop this message? It will not be sent.">{link}</RetryOrDrop>
      ) : <div className="mt-1 flex">{link}</div>}
    </li>
  );
}
