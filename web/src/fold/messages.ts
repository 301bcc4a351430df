// Messages of users and answers of agents, streamed and complete.
import type { SessionEvent } from "../api/types";
import { getFlag, getList, getNumber, getRecord, getString } from "./eventData";
import type { SessionBuilder } from "./sessionBuilder";
import { type AnswerItem, type Attachment, NO_USAGE, type Usage } from "./state";

export function applyUserMessage(session: SessionBuilder, event: SessionEvent): void {
  const key = event.message_id ?? `message-${event.seq}`;
  const clientId = getString(event.data, "client_message_id");
  if (clientId !== null) session.addClientId(clientId);
  session.putItem({
    kind: "user",
    key,
    seq: event.seq,
    at: event.timestamp_ms,
    text: event.text ?? "",
    sender: getString(event.data, "sender") ?? "user",
    clientId,
    steer: getFlag(event.data, "steer", "steering"),
    seenAt: null,
    runId: null,
    attachments: parseAttachments(event),
  });
}

/** Append a token. A new attempt of the run starts the text again; tokens of an older attempt arrive late and are ignored. */
export function applyToken(session: SessionBuilder, event: SessionEvent): void {
  const key = event.message_id;
  if (key === null) return;
  const attempt = getNumber(event.data, "attempt") ?? 1;
  const index = event.token_seq ?? 0;
  const known = session.getItem(key);
  if (known === null || known.kind !== "answer") {
    const answer = newAnswer(event, key, attempt);
    session.putItem(answer);
    session.putModelSpan(answer.runId, key, answer.agent, null);
    return;
  }
  if (!known.streaming || attempt < known.attempt) return;
  if (attempt > known.attempt) session.putItem({ ...known, attempt, text: event.text ?? "", tokenCount: index + 1 });
  else if (index >= known.tokenCount) session.putItem({ ...known, text: known.text + (event.text ?? ""), tokenCount: index + 1 });
}

/** The recorded text replaces what was streamed. */
export function applyAnswer(session: SessionBuilder, event: SessionEvent): void {
  const key = event.message_id ?? `message-${event.seq}`;
  const known = session.getItem(key);
  const streamed = known?.kind === "answer" ? known : newAnswer(event, key, 1);
  const usage = parseUsage(event);
  const answer: AnswerItem = {
    ...streamed,
    agent: event.agent_id ?? streamed.agent,
    text: event.text ?? streamed.text,
    streaming: false,
    replyTo: getString(event.data, "reply_to"),
    usage,
    attachments: parseAttachments(event),
  };
  session.putItem(answer);
  session.putModelSpan(answer.runId, key, answer.agent, event.timestamp_ms);
  if (usage !== null) recordUsage(session, answer, usage);
}

function newAnswer(event: SessionEvent, key: string, attempt: number): AnswerItem {
  return {
    kind: "answer",
    key,
    seq: event.seq,
    at: event.timestamp_ms,
    agent: event.agent_id,
    text: event.text ?? "",
    streaming: true,
    attempt,
    tokenCount: (event.token_seq ?? 0) + 1,
    runId: getString(event.data, "run_id"),
    replyTo: null,
    usage: null,
    attachments: [],
  };
}

function parseAttachments(event: SessionEvent): Attachment[] {
  return getList(event.data, "attachments").flatMap((value) => {
    if (value === null || typeof value !== "object") return [];
    const data = value as Record<string, unknown>;
    const name = getString(data, "name") ?? "attachment";
    const fileId = getString(data, "file_id");
    return [{ fileId, sha256: getString(data, "sha256"), seq: event.seq, name, mediaType: getString(data, "media_type"), bytes: getNumber(data, "bytes", "size") }];
  });
}

function parseUsage(event: SessionEvent): Usage | null {
  const usage = getRecord(event.data, "usage");
  const totalTokens = getNumber(usage, "total_tokens");
  if (totalTokens === null) return null;
  return {
    requests: getNumber(usage, "requests") ?? 1,
    inputTokens: getNumber(usage, "input_tokens") ?? 0,
    outputTokens: getNumber(usage, "output_tokens") ?? 0,
    totalTokens,
  };
}

function recordUsage(session: SessionBuilder, answer: AnswerItem, usage: Usage): void {
  const run = session.getRun(answer.runId);
  if (run !== null) session.putRun({ ...run, usage });
  session.usage = addUsage(session.usage, usage);
  const name = run?.agent ?? answer.agent ?? "unknown";
  session.usageByAgent = { ...session.usageByAgent, [name]: addUsage(session.usageByAgent[name] ?? NO_USAGE, usage) };
}

function addUsage(a: Usage, b: Usage): Usage {
  return {
    requests: a.requests + b.requests,
    inputTokens: a.inputTokens + b.inputTokens,
    outputTokens: a.outputTokens + b.outputTokens,
    totalTokens: a.totalTokens + b.totalTokens,
  };
}
