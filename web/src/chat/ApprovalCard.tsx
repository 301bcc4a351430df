// A tool call that needs approval: its arguments, the form to decide, and the decision.
import { type FormEvent, type ReactElement, useEffect, useState } from "react";
import type { ApprovalItem } from "../fold/state";
import { Badge, Button, LongText } from "../ui/common";
import { useApp } from "../ui/context";
import { formatDateTime, formatJson, formatTime, formatTimeLeft } from "../ui/format";
import { Icon } from "../ui/icons";
import { useAction } from "../ui/requests";

const OUTCOMES = {
  approved: { tone: "good", label: "Approved" },
  rejected: { tone: "bad", label: "Rejected" },
  expired: { tone: "bad", label: "Expired" },
  stopped: { tone: "plain", label: "No longer needed" },
} as const;
const REASON_MAX_CHARS = 2_000; // the server's limit
const TRUNCATION_MARK = "…"; // the server ends truncated values with it, and uses it as the name of omitted arguments
const REFRESH_MS = 15_000;

export function ApprovalCard({ item }: { item: ApprovalItem }): ReactElement {
  const { status } = item;
  return (
    <div className="pb-4 pl-9.5">
      <section aria-label={`Approval of ${item.tool}`} className={`rounded-xl border px-4 py-3 ${status === "pending" ? "border-accent bg-accent-soft" : "border-line bg-surface"}`}>
        <div className="flex flex-wrap items-center gap-2 text-sm">
          <Icon name="hand" size={17} className="text-accent-ink" />
          <span className="min-w-0 flex-1"><strong className="font-semibold">{item.agent ?? "An agent"}</strong> wants to run <strong className="font-semibold">{item.tool}</strong></span>
          {status === "pending" ? <Badge tone="strong">Needs approval</Badge> : <Badge tone={OUTCOMES[status].tone}>{OUTCOMES[status].label}</Badge>}
        </div>
        <Arguments item={item} />
        {status === "pending" ? <DecisionForm item={item} /> : <DecisionLine item={item} />}
      </section>
    </div>
  );
}

/** Long arguments are truncated in the log; the user can load them in full before deciding. */
function Arguments({ item }: { item: ApprovalItem }): ReactElement {
  const app = useApp();
  const [args, setArgs] = useState(item.args);
  const { busy, error, run } = useAction();
  const truncated = args === item.args && isTruncated(args);
  const showAll = (): void => {
    const id = app.current.get()?.id;
    if (id === undefined) return;
    void run(async () => {
      const { approvals } = await app.api.approvals(id);
      const found = approvals.findLast((one) => one.call_id === item.callId && one.run_id === item.runId);
      if (found !== undefined) setArgs(found.args);
    });
  };
  return (
    <>
      <pre tabIndex={0} aria-label="Arguments" className="mt-2 max-h-72 overflow-auto rounded-lg bg-sunken px-3 py-2 font-mono text-[12.5px] whitespace-pre-wrap wrap-anywhere"><LongText text={formatJson(args)} /></pre>
      {truncated && <button type="button" disabled={busy} onClick={showAll} className="mt-1 text-xs font-medium text-accent-ink underline">Show full arguments</button>}
      {error && <p role="alert" className="mt-1 text-sm text-bad">{error}</p>}
    </>
  );
}

function isTruncated(args: Readonly<Record<string, unknown>>): boolean {
  return Object.entries(args).some(([name, value]) => name === TRUNCATION_MARK || (typeof value === "string" && value.endsWith(TRUNCATION_MARK)));
}

function DecisionForm({ item }: { item: ApprovalItem }): ReactElement {
  const app = useApp();
  const [reason, setReason] = useState("");
  const [decided, setDecided] = useState<string | null>(null);
  const { busy, error, run } = useAction();
  const decide = (decision: "approve" | "reject"): void => {
    const id = app.current.get()?.id;
    if (id === undefined) return;
    void run(async () => setDecided((await app.api.decide(id, item.callId, decision, reason.trim())).status)).then(() => app.expectUpdates());
  };
  const submit = (event: FormEvent): void => event.preventDefault(); // Enter in the reason field must not decide
  if (decided !== null) return <p role="status" className="mt-3 text-sm text-muted">You {decided} this call. {item.agent ?? "The run"} continues as soon as a worker is free.</p>;
  return (
    <form onSubmit={submit} className="mt-3 flex flex-wrap items-center gap-2">
      <Button tone="strong" disabled={busy} onClick={() => decide("approve")}>Approve</Button>
      <Button tone="bad" disabled={busy} onClick={() => decide("reject")}>Reject</Button>
      <input
        value={reason} maxLength={REASON_MAX_CHARS} onChange={(event) => setReason(event.target.value)} aria-label="Reason (optional)" placeholder="Reason (optional)"
        className="min-w-40 flex-1 rounded-lg border border-line bg-surface px-3 py-1.5 text-sm"
      />
      {item.expiresAt !== null && <Expiry at={item.expiresAt} />}
      {error && <span role="alert" className="w-full text-sm text-bad">{error}</span>}
    </form>
  );
}

function Expiry({ at }: { at: number }): ReactElement {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), REFRESH_MS);
    return () => clearInterval(timer);
  }, []);
  return <span title={formatDateTime(at)} className="w-full text-xs text-muted">{at > now ? `Rejected automatically if not decided within ${formatTimeLeft(at - now)}.` : "The time limit has passed."}</span>;
}

function DecisionLine({ item }: { item: ApprovalItem }): ReactElement | null {
  if (item.decidedAt === null) return null;
  const who = item.status === "expired" ? "No decision was made in time" : `By ${item.decidedBy?.replace(/^user:/, "") ?? "an unknown user"}`;
  return (
    <p className="mt-2 text-sm text-muted wrap-anywhere">
      {who}, <time title={formatDateTime(item.decidedAt)}>{formatTime(item.decidedAt)}</time>{item.reason !== null && <>: {item.reason}</>}
    </p>
  );
}
