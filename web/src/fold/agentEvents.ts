// Handoffs, approvals, budgets, subagents and receipts of steering messages.
import type { SessionEvent } from "../api/types";
import { getList, getNumber, getRecord, getString, getTime } from "./eventData";
import type { SessionBuilder } from "./sessionBuilder";
import type { ApprovalItem, BudgetUse } from "./state";

export function applyHandoff(session: SessionBuilder, event: SessionEvent): void {
  const to = event.agent_id ?? getString(event.data, "target");
  if (to === null) return;
  const from = getString(event.data, "source");
  const { seq, timestamp_ms: at, reason } = event;
  session.activeAgent = to;
  if (reason === "superseded") return; // a handoff of the replaced run does not count any more
  session.putItem({ kind: "handoff", key: `handoff-${seq}`, seq, at, from, to, reason });
  const edge = `${from ?? ""}→${to}`;
  session.handoffs = { ...session.handoffs, [edge]: (session.handoffs[edge] ?? 0) + 1 };
}

/** Mark the steering messages that a run has read. A message from an agent appears in its receipt only, so it is added. */
export function applyReceipt(session: SessionBuilder, event: SessionEvent): void {
  for (const entry of getList(event.data, "messages")) {
    const message = entry !== null && typeof entry === "object" ? (entry as Record<string, unknown>) : {};
    const id = getString(message, "id");
    if (id !== null && getString(message, "outcome") === "seen") markSeen(session, event, id, message);
  }
}

function markSeen(session: SessionBuilder, event: SessionEvent, key: string, message: Readonly<Record<string, unknown>>): void {
  const { seq, timestamp_ms: at } = event;
  const known = session.getItem(key);
  if (known !== null && known.kind !== "user") return;
  const sender = getString(message, "source") ?? "agent";
  const text = getString(message, "text") ?? "";
  const added = { kind: "user" as const, key, seq, at, text, sender, clientId: null, runId: null, attachments: [] };
  session.putItem({ ...(known ?? added), steer: true, seenAt: known?.seenAt ?? at });
}

const DECISIONS = new Set(["approved", "rejected", "expired"] as const);
type Decision = "approved" | "rejected" | "expired";

/** The request and the later decision are one item. */
export function applyApproval(session: SessionBuilder, event: SessionEvent): void {
  const callId = getString(event.data, "tool_call_id");
  if (callId === null) return;
  const key = `approval:${getString(event.data, "run_id") ?? ""}:${getNumber(event.data, "turn") ?? 0}:${callId}`;
  const known = session.getItem(key);
  const item = known?.kind === "approval" ? known : newApproval(event, key, callId);
  const status = getString(event.data, "status") as Decision;
  const run = session.getRun(item.runId);
  if (run !== null) session.putRun({ ...run, approvalRequested: true });
  if (!DECISIONS.has(status)) session.putItem(item);
  else session.putItem({ ...item, status, decidedBy: getString(event.data, "decided_by"), decidedAt: event.timestamp_ms, reason: event.reason });
}

function newApproval(event: SessionEvent, key: string, callId: string): ApprovalItem {
  return {
    kind: "approval",
    key,
    seq: event.seq,
    at: event.timestamp_ms,
    callId,
    tool: getString(event.data, "name") ?? "a tool",
    agent: event.agent_id,
    runId: getString(event.data, "run_id"),
    args: getRecord(event.data, "args"),
    status: "pending",
    decidedBy: null,
    decidedAt: null,
    reason: null,
    expiresAt: getTime(event.data, "expires_at"),
  };
}

const UNITS = ["tokens", "calls", "cost_usd"] as const;

/** A paused run has one item until it goes on. */
export function applyBudget(session: SessionBuilder, event: SessionEvent): void {
  const { seq, timestamp_ms: at, agent_id: agent } = event;
  const runId = getString(event.data, "run_id");
  const status = getString(event.data, "status") === "warning" ? "warning" : "waiting";
  const run = session.getRun(runId);
  if (status === "waiting" && run !== null) session.putRun({ ...run, approvalRequested: true });
  const budgets = getList(event.data, "budgets").map((entry) => budgetUse(entry !== null && typeof entry === "object" ? (entry as Record<string, unknown>) : {}));
  session.closeBudgets(runId, "resumed");
  session.putItem({
    kind: "budget", key: `budget-${seq}`, seq, at, agent, runId, subagentId: getString(event.data, "subagent_id"), status, budgets, resumesAt: getTime(event.data, "resumes_at"),
  });
}

function budgetUse(data: Readonly<Record<string, unknown>>): BudgetUse {
  const units = UNITS.flatMap((unit) => {
    const limit = getNumber(data, `${unit}_limit`);
    return limit === null ? [] : [{ unit, used: getNumber(data, unit) ?? 0, limit }];
  });
  return { budget: getString(data, "budget") ?? "unknown", name: getString(data, "name") ?? "", units };
}

export function applySubagent(session: SessionBuilder, event: SessionEvent): void {
  const id = getString(event.data, "subagent_id");
  if (id === null) return;
  const { seq, timestamp_ms: at, agent_id: agent } = event;
  const name = getString(event.data, "name") ?? "agent";
  session.putItem({ kind: "subagent", key: `subagent:${id}`, seq, at, id, name, task: getString(event.data, "task") ?? "", agent });
}

