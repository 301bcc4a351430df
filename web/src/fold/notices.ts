// Handoffs, approvals, receipts and what went wrong.
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
  const fresh = { kind: "user" as const, key, seq, at, text: said, sender, clientId: null, runId: null };
  draft.put({ ...(known ?? fresh), steer: true, seenAt: known?.seenAt ?? at });
}

const DECIDED: Readonly<Record<string, ApprovalItem["status"]>> = {
  approve: "approved", approved: "approved", reject: "rejected", rejected: "rejected", expired: "expired",
};

export function takeApproval(draft: Draft, event: Event): void {
  const calls = list(event.data, "calls", "approvals").filter((one) => one !== null && typeof one === "object");
  const told = calls.length > 0 ? (calls as Record<string, unknown>[]) : [event.data];
  for (const call of told) takeOneApproval(draft, event, call);
}

function takeOneApproval(draft: Draft, event: Event, call: Readonly<Record<string, unknown>>): void {
  const callId = text(call, "call_id", "tool_call_id", "id");
  if (callId === null) return;
  const key = `approval:${text(event.data, "run_id") ?? ""}:${callId}`;
  const known = draft.item(key);
  const status = DECIDED[text(call, "decision") ?? text(call, "status") ?? text(event.data, "status") ?? ""];
  const begun: ApprovalItem = known?.kind === "approval" ? known : {
    kind: "approval",
    key,
    seq: event.seq,
    at: event.timestamp_ms,
    callId,
    tool: text(call, "name", "tool") ?? "a tool",
    agent: event.agent_id,
    args: record(call, "args"),
    status: "pending",
    reason: null,
    expiresAt: moment(call, "expires_at", "expires_ms", "expires") ?? moment(event.data, "expires_at", "expires_ms"),
  };
  draft.put({ ...begun, status: status ?? begun.status, reason: event.reason ?? text(call, "reason") });
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
