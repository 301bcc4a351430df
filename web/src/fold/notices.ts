// Handoffs, approvals, subagents, receipts and what went wrong.
import type { Event } from "../api/shapes";
import type { Draft } from "./draft";
import { count, list, moment, record, text } from "./reading";
import type { ApprovalItem } from "./state";

export function takeHandoff(draft: Draft, event: Event): void {
  const to = event.agent_id ?? text(event.data, "target");
  if (to === null) return;
  const from = text(event.data, "source");
  const { seq, timestamp_ms: at, reason } = event;
  draft.put({ kind: "handoff", key: `handoff-${seq}`, seq, at, from, to, reason });
  draft.agent = to;
  const way = `${from ?? ""}→${to}`;
  draft.handoffs = { ...draft.handoffs, [way]: (draft.handoffs[way] ?? 0) + 1 };
}

/** Which messages a run has seen: the receipt of a steer. One that an agent sent is told nowhere else. */
export function takeReceipt(draft: Draft, event: Event): void {
  for (const one of list(event.data, "messages")) {
    const told = one !== null && typeof one === "object" ? (one as Record<string, unknown>) : {};
    const id = text(told, "id");
    if (id !== null && text(told, "outcome") === "seen") takeSeen(draft, event, id, told);
  }
}

function takeSeen(draft: Draft, event: Event, key: string, told: Readonly<Record<string, unknown>>): void {
  const { seq, timestamp_ms: at } = event;
  const known = draft.item(key);
  if (known !== null && known.kind !== "user") return;
  const sender = text(told, "source") ?? "agent";
  const said = text(told, "text") ?? "";
  const fresh = { kind: "user" as const, key, seq, at, text: said, sender, clientId: null, runId: null, attachments: [] };
  draft.put({ ...(known ?? fresh), steer: true, seenAt: known?.seenAt ?? at });
}

const DECIDED = new Set(["approved", "rejected", "expired"] as const);
type Decided = "approved" | "rejected" | "expired";

/** Asked first, decided on later: one card. */
export function takeApproval(draft: Draft, event: Event): void {
  const callId = text(event.data, "tool_call_id");
  if (callId === null) return;
  const key = `approval:${text(event.data, "run_id") ?? ""}:${count(event.data, "turn") ?? 0}:${callId}`;
  const known = draft.item(key);
  const begun = known?.kind === "approval" ? known : asked(event, key, callId);
  const status = text(event.data, "status") as Decided;
  const run = draft.run(begun.runId);
  if (run !== null) draft.putRun({ ...run, asked: true });
  if (!DECIDED.has(status)) draft.put(begun);
  else draft.put({ ...begun, status, decidedBy: text(event.data, "decided_by"), decidedAt: event.timestamp_ms, reason: event.reason });
}

function asked(event: Event, key: string, callId: string): ApprovalItem {
  return {
    kind: "approval",
    key,
    seq: event.seq,
    at: event.timestamp_ms,
    callId,
    tool: text(event.data, "name") ?? "a tool",
    agent: event.agent_id,
    runId: text(event.data, "run_id"),
    args: record(event.data, "args"),
    status: "pending",
    decidedBy: null,
    decidedAt: null,
    reason: null,
    expiresAt: moment(event.data, "expires_at"),
  };
}

export function takeSubagent(draft: Draft, event: Event): void {
  const id = text(event.data, "subagent_id");
  if (id === null) return;
  const { seq, timestamp_ms: at, agent_id: agent } = event;
  const name = text(event.data, "name") ?? "agent";
  draft.put({ kind: "subagent", key: `subagent:${id}`, seq, at, id, name, task: text(event.data, "task") ?? "", agent });
}

export function takeError(draft: Draft, event: Event): void {
  const again = count(event.data, "retry_in_s");
  if (again === null && text(event.data, "run_id") !== null) return; // the end of its run says it, with a way to try again
  const { seq, timestamp_ms: at } = event;
  draft.put({
    kind: "notice",
    key: `error-${seq}`,
    seq,
    at,
    tone: again === null ? "error" : "warning",
    text: again === null ? "This message could not be answered." : `Something went wrong; tried again in ${waited(again)}.`,
    detail: [event.reason, event.text].filter(Boolean).join(": ") || null,
    retryOf: null,
  });
}

function waited(seconds: number): string {
  return seconds < 1 ? "a moment" : `${Math.round(seconds)} s`;
}

export function takeGap(draft: Draft, event: Event): void {
  const { seq, timestamp_ms: at } = event;
  draft.put({
    kind: "notice", key: `gap-${seq}`, seq, at, tone: "warning",
    text: "Older records of this conversation are no longer kept.", detail: null, retryOf: null,
  });
}
