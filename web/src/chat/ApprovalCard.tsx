// A tool that may not run before a person has said so.
import { type ReactElement, useState } from "react";
import type { ApprovalItem } from "../fold/state";
import { useDoing } from "../ui/asking";
import { useApp } from "../ui/context";
import { clock } from "../ui/format";
import { Icon } from "../ui/icons";
import { Badge, Button } from "../ui/parts";

const ENDS = { approved: "Approved", rejected: "Rejected", expired: "Expired: rejected" };

export function ApprovalCard({ item }: { item: ApprovalItem }): ReactElement {
  const pending = item.status === "pending";
  return (
    <div className="pb-4 pl-9.5">
      <section aria-label={`Approval of ${item.tool}`} className={`rounded-xl border px-4 py-3 ${pending ? "border-accent bg-accent-soft" : "border-line bg-surface"}`}>
        <div className="flex flex-wrap items-center gap-2 text-sm">
          <Icon name="hand" size={17} className="text-accent-ink" />
          <span className="min-w-0 flex-1"><strong className="font-semibold">{item.agent ?? "An agent"}</strong> asks to run <strong className="font-semibold">{item.tool}</strong></span>
          {item.status !== "pending" && <Badge tone={item.status === "approved" ? "good" : "bad"}>{ENDS[item.status]}</Badge>}
        </div>
        <pre tabIndex={0} aria-label="Arguments" className="mt-2 max-h-56 overflow-auto rounded-lg bg-sunken px-3 py-2 font-mono text-[12.5px] whitespace-pre-wrap wrap-anywhere">{JSON.stringify(item.args, null, 2)}</pre>
        {item.reason !== null && !pending && <p className="mt-2 text-sm text-muted wrap-anywhere">{item.reason}</p>}
        {pending && <Decision item={item} />}
      </section>
    </div>
  );
}

function Decision({ item }: { item: ApprovalItem }): ReactElement {
  const app = useApp();
  const [reason, setReason] = useState("");
  const { busy, problem, run } = useDoing();
  const decide = (decision: "approve" | "reject"): void => {
    const id = app.current.get()?.id;
    if (id !== undefined) void run(() => app.api.decide(id, item.callId, decision, reason.trim())).then(() => app.hurry());
  };
  return (
    <div className="mt-3 flex flex-wrap items-center gap-2">
      <Button tone="strong" disabled={busy} onClick={() => decide("approve")}>Approve</Button>
      <Button tone="bad" disabled={busy} onClick={() => decide("reject")}>Reject</Button>
      <input
        value={reason} onChange={(event) => setReason(event.target.value)} aria-label="Reason, if you reject" placeholder="Reason (the model is told)"
        className="min-w-40 flex-1 rounded-lg border border-line bg-surface px-3 py-1.5 text-sm"
      />
      {item.expiresAt !== null && <span className="text-xs text-muted">until {clock(item.expiresAt)}</span>}
      {problem && <span role="alert" className="w-full text-sm text-bad">{problem}</span>}
    </div>
  );
}
