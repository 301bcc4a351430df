// What people and agents say.
import type { Event } from "../api/shapes";
import type { Draft } from "./draft";
import { count, flag, list, record, text } from "./reading";
import { type AnswerItem, type Attachment, NO_USAGE, type Usage } from "./state";

export function takeUser(draft: Draft, event: Event): void {
  const key = event.message_id ?? `message-${event.seq}`;
  const clientId = text(event.data, "client_message_id");
  if (clientId !== null) draft.addClientId(clientId);
  draft.put({
    kind: "user",
    key,
    seq: event.seq,
    at: event.timestamp_ms,
    text: event.text ?? "",
    sender: text(event.data, "sender") ?? "user",
    clientId,
    steer: flag(event.data, "steer", "steering"),
    seenAt: null,
    runId: null,
    attachments: attachmentsOf(event),
  });
}

export function takeToken(draft: Draft, event: Event): void {
  const key = event.message_id;
  if (key === null) return;
  const attempt = count(event.data, "attempt") ?? 1;
  const piece = event.token_seq ?? 0;
  const known = draft.item(key);
  if (known === null || known.kind !== "answer") {
    const begun = begin(event, key, attempt);
    draft.put(begun);
    draft.putTurn(begun.runId, key, begun.agent, null);
    return;
  }
  if (!known.streaming || attempt < known.attempt) return;
  if (attempt > known.attempt) draft.put({ ...known, attempt, text: event.text ?? "", pieces: piece + 1 });
  else if (piece >= known.pieces) draft.put({ ...known, text: known.text + (event.text ?? ""), pieces: piece + 1 });
}

export function takeAnswer(draft: Draft, event: Event): void {
  const key = event.message_id ?? `message-${event.seq}`;
  const known = draft.item(key);
  const begun = known?.kind === "answer" ? known : begin(event, key, 1);
  const usage = usageOf(event);
  const answer: AnswerItem = {
    ...begun,
    agent: event.agent_id ?? begun.agent,
    text: event.text ?? begun.text,
    streaming: false,
    replyTo: text(event.data, "reply_to"),
    usage,
    attachments: attachmentsOf(event),
  };
  draft.put(answer);
  draft.putTurn(answer.runId, key, answer.agent, event.timestamp_ms);
  if (usage !== null) addUsage(draft, answer, usage);
}

function begin(event: Event, key: string, attempt: number): AnswerItem {
  return {
    kind: "answer",
    key,
    seq: event.seq,
    at: event.timestamp_ms,
    agent: event.agent_id,
    text: event.text ?? "",
    streaming: true,
    attempt,
    pieces: (event.token_seq ?? 0) + 1,
    runId: text(event.data, "run_id"),
    replyTo: null,
    usage: null,
    attachments: [],
  };
}

function attachmentsOf(event: Event): Attachment[] {
  return list(event.data, "attachments").flatMap((value) => {
    if (value === null || typeof value !== "object") return [];
    const data = value as Record<string, unknown>;
    const name = text(data, "name") ?? "attachment";
    return [{ sha256: text(data, "sha256"), seq: event.seq, name, type: text(data, "media_type"), bytes: count(data, "bytes") }];
  });
}

function usageOf(event: Event): Usage | null {
  const used = record(event.data, "usage");
  const total = count(used, "total_tokens");
  if (total === null) return null;
  return {
    requests: count(used, "requests") ?? 1,
    input: count(used, "input_tokens") ?? 0,
    output: count(used, "output_tokens") ?? 0,
    total,
  };
}

function addUsage(draft: Draft, answer: AnswerItem, used: Usage): void {
  const run = draft.run(answer.runId);
  if (run !== null) draft.putRun({ ...run, usage: used });
  draft.usage = sum(draft.usage, used);
  const name = run?.agent ?? answer.agent ?? "unknown";
  draft.usageByAgent = { ...draft.usageByAgent, [name]: sum(draft.usageByAgent[name] ?? NO_USAGE, used) };
}

function sum(a: Usage, b: Usage): Usage {
  return {
    requests: a.requests + b.requests, input: a.input + b.input, output: a.output + b.output, total: a.total + b.total,
  };
}
