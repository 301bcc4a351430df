// Messages to places outside, and what became of them; for admins.
import { type ReactElement, useState } from "react";
import type { OutboxItem } from "../api/shapes";
import { hashOf } from "../store/address";
import { useAsked } from "../ui/asking";
import { useApp } from "../ui/context";
import { plural, whole } from "../ui/format";
import { Badge, Button, Failure, Hint } from "../ui/parts";
import { Decide } from "./Decide";

const SHOWN_MAX = 100; // of the last thousand that the server tells
const STATES: Record<OutboxItem["state"], { tone: "plain" | "accent" | "good" | "warn" | "bad"; words: string }> = {
  waiting: { tone: "accent", words: "Waiting" },
  begun: { tone: "accent", words: "Being sent" },
  sent: { tone: "good", words: "Sent" },
  dead: { tone: "bad", words: "Dead" },
  unknown: { tone: "warn", words: "Outcome unknown" },
  dropped: { tone: "plain", words: "Dropped" },
};

function needsSomebody(item: OutboxItem): boolean {
  return item.state === "dead" || item.state === "unknown";
}

export default function OutboxPanel(): ReactElement {
  const app = useApp();
  const [all, setAll] = useState(false);
  const { value, problem, again } = useAsked(() => app.api.outbox(), "outbox");
  if (problem) return <div className="p-3"><Failure text={problem} again={again} /></div>;
  if (value === null) return <Hint>Loading…</Hint>;
  const open = value.items.filter(needsSomebody);
  const shown = (all ? value.items : open).slice(-SHOWN_MAX).reverse();
  return (
    <div className="space-y-2 p-3">
      <Button className="w-full" onClick={again}>Look again</Button>
      <label className="flex items-center gap-2 px-1 text-sm text-muted">
        <input type="checkbox" checked={all} onChange={(event) => setAll(event.target.checked)} /> Show all
        <span className="ml-auto text-xs text-faint">{open.length} of {value.items.length} need somebody</span>
      </label>
      {shown.length === 0 && <Hint>{value.items.length === 0 ? "Nothing has left for a place outside." : "Nothing waits for a decision."}</Hint>}
      <ul aria-label="Outbox" className="space-y-2">{shown.map((item) => <Entry key={`${item.connector}/${item.id}`} item={item} changed={again} />)}</ul>
    </div>
  );
}

function Entry({ item, changed }: { item: OutboxItem; changed: () => void }): ReactElement {
  const app = useApp();
  const { tone, words } = STATES[item.state];
  const link = <a className="ml-auto text-xs text-accent-ink underline" href={hashOf(item.conversation_id)}>conversation</a>;
  return (
    <li className="rounded-xl border border-line p-3 text-sm">
      <div className="flex items-center gap-2">
        <span className="min-w-0 flex-1 truncate"><strong className="font-medium">{item.connector}</strong> to {item.target}</span>
        <Badge tone={tone}>{words}</Badge>
      </div>
      <p className="mt-1 text-xs text-faint">{whole(item.at_ms)}, {plural(item.tries, "attempt")}</p>
      {item.reason !== null && <p className={`mt-1 text-xs wrap-anywhere ${needsSomebody(item) ? "text-bad" : "text-muted"}`}>{item.reason}</p>}
      {needsSomebody(item) ? (
        <Decide retry={() => app.api.retryItem(item)} drop={() => app.api.dropItem(item)} changed={changed} warning="Drop it? It will not be sent.">{link}</Decide>
      ) : <div className="mt-1 flex">{link}</div>}
    </li>
  );
}
