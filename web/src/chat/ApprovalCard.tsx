// A tool that may not run before a person has said so: what is asked, deciding on it, and what was decided by whom.
import { type FormEvent, type ReactElement, useEffect, useState } from "react";
import type { ApprovalItem } from "../fold/state";
import { useDoing } from "../ui/asking";
import { useApp } from "../ui/context";
import { clock, left, whole } from "../ui/format";
import { Icon } from "../ui/icons";
import { Badge, Button } from "../ui/parts";

const ENDS = {
  approved: { tone: "good", words: "Approved" },
  rejected: { tone: "bad", words: "Rejected" },
  expired: { tone: "bad", words: "Expired" },
  stopped: { tone: "plain", words: "Not needed any more" },
} as const;
const REASON_MAX_CHARS = 2_000; // the server's limit
const CUT = "…"; // ends what was cut short, and names what was left out
const LOOK_EVERY_MS = 15_000;

export function ApprovalCard({ item }: { item: ApprovalItem }): ReactElement {
  const { status } = item;
  return (
    <div className="pb-4 pl-9.5">
      <section aria-label={`Approval of ${item.tool}`} className={`rounded-xl border px-4 py-3 ${status === "pending" ? "border-accent bg-accent-soft" : "border-line bg-surface"}`}>
        <div className="flex flex-wrap items-center gap-2 text-sm">
          <Icon name="hand" size={17} className="text-accent-ink" />
          <span className="min-w-0 flex-1"><strong className="font-semibold">{item.agent ?? "An agent"}</strong> asks to run <strong className="font-semibold">{item.tool}</strong></span>
          {status === "pending" ? <Badge tone="strong">Waits for you</Badge> : <Badge tone={ENDS[status].tone}>{ENDS[status].words}</Badge>}
        </div>
        <Arguments item={item} />
        {status === "pending" ? <Decision item={item} /> : <Decided item={item} />}
      </section>
    </div>
  );
}

/** Nobody should approve what they cannot read: long arguments are shown whole on request. */
function Arguments({ item }: { item: ApprovalItem }): ReactElement {
  const app = useApp();
  const [args, setArgs] = useState(item.args);
  const { busy, problem, run } = useDoing();
  const cut = args === item.args && isCut(args);
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
      <pre tabIndex={0} aria-label="Arguments" className="mt-2 max-h-72 overflow-auto rounded-lg bg-sunken px-3 py-2 font-mono text-[12.5px] whitespace-pre-wrap wrap-anywhere">{JSON.stringify(args, null, 2)}</pre>
      {cut && <button type="button" disabled={busy} onClick={showAll} className="mt-1 text-xs font-medium text-accent-ink underline">Show the arguments whole</button>}
      {problem && <p role="alert" className="mt-1 text-sm text-bad">{problem}</p>}
    </>
  );
}

function isCut(args: Readonly<Record<string, unknown>>): boolean {
  return Object.entries(args).some(([name, value]) => name === CUT || (typeof value === "string" && value.endsWith(CUT)));
}

function Decision({ item }: { item: ApprovalItem }): ReactElement {
  const app = useApp();
  const [reason, setReason] = useState("");
  const [said, setSaid] = useState<string | null>(null);
  const { busy, problem, run } = useDoing();
  const decide = (decision: "approve" | "reject"): void => {
    const id = app.current.get()?.id;
    if (id === undefined) return;
    void run(async () => setSaid((await app.api.decide(id, item.callId, decision, reason.trim())).status)).then(() => app.hurry());
  };
  const submit = (event: FormEvent): void => event.preventDefault(); // Enter in the field must not decide
  if (said !== null) return <p role="status" className="mt-3 text-sm text-muted">You have {said} it. {item.agent ?? "The run"} goes on as soon as a worker takes it up.</p>;
  return (
    <form onSubmit={submit} className="mt-3 flex flex-wrap items-center gap-2">
      <Button tone="strong" disabled={busy} onClick={() => decide("approve")}>Approve</Button>
      <Button tone="bad" disabled={busy} onClick={() => decide("reject")}>Reject</Button>
      <input
        value={reason} maxLength={REASON_MAX_CHARS} onChange={(event) => setReason(event.target.value)} aria-label="Reason, optional" placeholder="Reason, optional"
        className="min-w-40 flex-1 rounded-lg border border-line bg-surface px-3 py-1.5 text-sm"
      />
      {item.expiresAt !== null && <Expiry at={item.expiresAt} />}
      {problem && <span role="alert" className="w-full text-sm text-bad">{problem}</span>}
    </form>
  );
}

function Expiry({ at }: { at: number }): ReactElement {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), LOOK_EVERY_MS);
    return () => clearInterval(timer);
  }, []);
  return <span title={whole(at)} className="w-full text-xs text-muted">{at > now ? `Counts as rejected if nobody decides within ${left(at - now)}.` : "The time is up."}</span>;
}

function Decided({ item }: { item: ApprovalItem }): ReactElement | null {
  if (item.decidedAt === null) return null;
  const who = item.status === "expired" ? "Nobody decided in time" : `By ${item.decidedBy?.replace(/^user:/, "") ?? "somebody"}`;
  return (
    <p className="mt-2 text-sm text-muted wrap-anywhere">
      {who}, <time title={whole(item.decidedAt)}>{clock(item.decidedAt)}</time>{item.reason !== null && <>: {item.reason}</>}
    </p>
  );
}
