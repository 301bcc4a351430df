// The rows of the message log: the items of the conversation, then the messages that are still being sent.
import { activeRun, isAwaitingApproval, isAwaitingBudget, type LogItem, pendingFailure, replaceableRun, type Run, type SessionState } from "../fold/state";
import type { PendingMessage, PendingMessages } from "../store/sender";

export type Row =
  | { kind: "item"; key: string; item: LogItem; state: ItemState }
  | { kind: "pending"; key: string; pending: PendingMessage }
  | { kind: "working"; key: string; run: Run };

/** What the appearance of an item depends on besides the item. */
export interface ItemState {
  /** A message that no run has read yet: one is running, or a steer was stored and no run has confirmed it. */
  receipt: "waiting" | "unconfirmed" | null;
  retryable: boolean;
  /** The last message or its answer, while nothing is under way: it can be edited, or answered again. */
  replaceable: boolean;
}

const PLAIN: ItemState = { receipt: null, retryable: false, replaceable: false };
const WAITING: ItemState = { receipt: "waiting", retryable: false, replaceable: false };
const UNCONFIRMED: ItemState = { receipt: "unconfirmed", retryable: false, replaceable: false };
const RETRYABLE: ItemState = { receipt: null, retryable: true, replaceable: false };
const REPLACEABLE: ItemState = { receipt: null, retryable: false, replaceable: true };

export function rowsOf(session: SessionState, pending: PendingMessages, cache: Map<string, Row>): Row[] {
  const run = activeRun(session);
  const last = pending.length === 0 ? replaceableRun(session) : null;
  const answer = last === null ? undefined : session.items.findLast((item) => item.kind === "answer" && item.runId === last.id);
  const rows: Row[] = session.items.map((item) => {
    const replaceable = last !== null && (item === answer || (item.kind === "user" && item.key === last.messageId));
    return rowOf(item, replaceable ? REPLACEABLE : stateOf(session, item, run), cache);
  });
  for (const one of pending) {
    if (!session.clientIds.has(one.clientId)) rows.push({ kind: "pending", key: one.clientId, pending: one });
  }
  if (run !== null && !showsProgress(session, run)) rows.push({ kind: "working", key: `working-${run.id}`, run });
  return rows;
}

/** The same object as before if nothing has changed, so that the row is not drawn again. */
function rowOf(item: LogItem, state: ItemState, cache: Map<string, Row>): Row {
  const key = item.kind === "user" ? (item.clientId ?? item.key) : item.key;
  const before = cache.get(key);
  if (before?.kind === "item" && before.item === item && before.state === state) return before;
  const row: Row = { kind: "item", key, item, state };
  cache.set(key, row);
  return row;
}

function stateOf(session: SessionState, item: LogItem, run: Run | null): ItemState {
  if (item.kind === "user") {
    if (item.runId !== null || item.seenAt !== null) return PLAIN;
    return run !== null ? WAITING : item.steer ? UNCONFIRMED : PLAIN;
  }
  if ((item.kind !== "notice" && item.kind !== "failure") || item.retryOf === null) return PLAIN;
  const last = session.runs.findLast((one) => one.kind === null);
  const ended = last?.messageId === item.retryOf && (last.status === "failed" || last.status === "stopped");
  const newest = session.items.findLast((one) => (one.kind === "notice" || one.kind === "failure") && one.retryOf === item.retryOf);
  return ended && newest === item ? RETRYABLE : PLAIN;
}

/** Whether an item already shows that the run is active: streaming text, a running tool, a pending approval, a failure. */
function showsProgress(session: SessionState, run: Run): boolean {
  if (isAwaitingApproval(session, run) || isAwaitingBudget(session, run) || pendingFailure(session, run) !== null) return true;
  const last = session.items.findLast((item) => item.kind !== "user");
  if (last === undefined) return false;
  if (last.kind === "answer") return last.runId === run.id && last.streaming;
  return last.kind === "tool" && last.runId === run.id && last.status === "running";
}
