// What the log shows, row by row: the conversation, then what is on its way.
import { isPaused, type Item, type Run, runUnderWay, type Session } from "../fold/state";
import type { Outgoing, OutgoingList } from "../store/outgoing";

export type Row =
  | { kind: "item"; key: string; item: Item; state: ItemState }
  | { kind: "outgoing"; key: string; outgoing: Outgoing }
  | { kind: "thinking"; key: string; run: Run };

/** What an item's look depends on beside itself. */
export interface ItemState {
  waiting: boolean;
  retryable: boolean;
}

const PLAIN: ItemState = { waiting: false, retryable: false };
const WAITING: ItemState = { waiting: true, retryable: false };
const RETRYABLE: ItemState = { waiting: false, retryable: true };

export function rowsOf(session: Session, outgoing: OutgoingList, known: Map<string, Row>): Row[] {
  const run = runUnderWay(session);
  const rows: Row[] = session.items.map((item) => rowOf(session, item, run, known));
  for (const one of outgoing) {
    if (!session.clientIds.has(one.clientId)) rows.push({ kind: "outgoing", key: one.clientId, outgoing: one });
  }
  if (run !== null && !isTalking(session, run)) rows.push({ kind: "thinking", key: `thinking-${run.id}`, run });
  return rows;
}

/** The same row as before when nothing has changed, so that it is not drawn again. */
function rowOf(session: Session, item: Item, run: Run | null, known: Map<string, Row>): Row {
  const state = stateOf(session, item, run);
  const key = item.kind === "user" ? (item.clientId ?? item.key) : item.key;
  const before = known.get(key);
  if (before?.kind === "item" && before.item === item && before.state === state) return before;
  const row: Row = { kind: "item", key, item, state };
  known.set(key, row);
  return row;
}

function stateOf(session: Session, item: Item, run: Run | null): ItemState {
  if (item.kind === "user") return run !== null && item.runId === null && item.seenAt === null ? WAITING : PLAIN;
  if (item.kind !== "notice" || item.retryOf === null) return PLAIN;
  const last = session.runs.findLast((one) => one.kind === null);
  const ended = last?.messageId === item.retryOf && (last.status === "failed" || last.status === "stopped");
  const newest = session.items.findLast((one) => one.kind === "notice" && one.retryOf === item.retryOf);
  return ended && newest === item ? RETRYABLE : PLAIN;
}

/** Whether the run shows signs of life of its own: text that streams, a tool at work, somebody being asked. */
function isTalking(session: Session, run: Run): boolean {
  if (isPaused(session, run)) return true;
  const last = session.items.findLast((item) => item.kind !== "user");
  if (last === undefined) return false;
  if (last.kind === "answer") return last.runId === run.id && last.streaming;
  return last.kind === "tool" && last.runId === run.id && last.status === "running";
}
