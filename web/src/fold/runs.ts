// Runs: started, retried, taken over, ended; and the notices about errors and missing events.
import type { SessionEvent } from "../api/types";
import { getList, getNumber, getRecord, getString } from "./eventData";
import type { SessionBuilder } from "./sessionBuilder";
import { type FailureItem, failureKey, type NoticeItem, type Run, type RunStatus } from "./state";

const MANUAL_SWITCH = "manual_switch"; // reason of a handoff that a user made
const END_STATUSES: Readonly<Record<string, RunStatus>> = { finished: "finished", failed: "failed", stopped: "stopped" };

export function applyRun(session: SessionBuilder, event: SessionEvent): void {
  const id = getString(event.data, "run_id");
  if (id === null) return;
  const run = session.getRun(id) ?? newRun(event, id);
  const ended = END_STATUSES[getString(event.data, "status") ?? ""];
  if (ended !== undefined) endRun(session, run, ended, event);
  else continueRun(session, run, event);
}

function newRun(event: SessionEvent, id: string): Run {
  return {
    id,
    agent: event.agent_id,
    messageId: getString(event.data, "envelope_id"),
    kind: getString(event.data, "run_kind"),
    status: "running",
    attempt: 1,
    approvalRequested: false,
    resumeCount: 0,
    startedAt: event.timestamp_ms,
    endedAt: null,
    reason: null,
    usage: null,
    omittedRuns: getNumber(event.data, "history_left_out") ?? 0,
    spans: [],
  };
}

function continueRun(session: SessionBuilder, run: Run, event: SessionEvent): void {
  // The server counts a run that resumes after an approval as a new attempt. For the user it is the same attempt.
  const resumeCount = run.resumeCount + (run.approvalRequested ? 1 : 0);
  const attempt = Math.max(1, (getNumber(event.data, "attempt") ?? 1) - resumeCount);
  session.putRun({ ...run, status: "running", endedAt: null, attempt, approvalRequested: false, resumeCount });
  const question = run.messageId === null ? null : session.getItem(run.messageId);
  if (question?.kind === "user" && question.runId === null) session.putItem({ ...question, runId: run.id });
  if (run.kind === null && session.activeAgent === null) session.activeAgent = run.agent;
  session.closeBudgets(run.id, "resumed");
  if (getString(event.data, "status") === "restarted" && !run.approvalRequested) noteRestart(session, run, event);
}

/** Say why a run starts again: an answer that does not match its schema, a failure, a user, a shorter history, or another worker. */
function noteRestart(session: SessionBuilder, run: Run, event: SessionEvent): void {
  const failure = getFailure(session, run.id);
  const omitted = getNumber(event.data, "history_left_out");
  if (event.reason?.startsWith("output mismatch") && event.message_id !== null) {
    // The notice takes the place of the text that was streamed, because that is not the answer.
    putNotice(session, event, { key: event.message_id, tone: "plain", text: "The answer did not match its schema. The agent was asked again." });
    return;
  }
  const retriedBy = /^retried by (?:user:)?(.+)$/.exec(event.reason ?? "")?.[1];
  if (retriedBy !== undefined || run.status !== "running") {
    if (failure !== null) session.putItem({ ...failure, status: "retrying", retryOf: null });
    putNotice(session, event, { tone: "plain", text: retriedBy === undefined ? "Retried." : `Retried by ${retriedBy}.`, detail: null });
  } else if (omitted !== null) {
    putNotice(session, event, { tone: "plain", text: `The conversation is too long for the model. The oldest ${omitted === 1 ? "run was" : `${omitted} runs were`} left out.`, detail: null });
  } else if (failure?.status === "retrying") session.putItem({ ...failure, retryAt: null });
  else putNotice(session, event, { tone: "plain", text: "The worker stopped. Another worker continued after the last saved step." });
}

function getFailure(session: SessionBuilder, runId: string): FailureItem | null {
  const item = session.getItem(failureKey(runId));
  return item?.kind === "failure" ? item : null;
}

function endRun(session: SessionBuilder, run: Run, status: RunStatus, event: SessionEvent): void {
  session.putRun({ ...run, status, endedAt: event.timestamp_ms, reason: event.reason });
  session.closeOpenItems(run.id);
  const failure = getFailure(session, run.id);
  if (failure !== null && status === "finished") session.putItem({ ...failure, status: "recovered", retryAt: null });
  if (failure !== null && status === "stopped") session.putItem({ ...failure, status: "stopped", retryAt: null });
  if (run.kind !== null) return;
  if (status === "stopped") putNotice(session, event, { tone: "plain", text: "Stopped.", retryOf: run.messageId });
  if (status === "failed") {
    const attempts = (failure?.attempts ?? 0) + 1;
    session.putItem({ ...newFailure(event, run.id), ...failure, attempts, status: "failed", cause: event.reason, retryAt: null, retryOf: run.messageId });
  }
}

function newFailure(event: SessionEvent, runId: string): FailureItem {
  const { seq, timestamp_ms: at } = event;
  return { kind: "failure", key: failureKey(runId), seq, at, runId, attempts: 0, cause: null, status: "retrying", retryAt: null, retryOf: null };
}

/** An attempt failed. The attempts of a run are one item; mail that did not become a run has a notice. */
export function applyError(session: SessionBuilder, event: SessionEvent): void {
  const runId = getString(event.data, "run_id");
  const retryInS = getNumber(event.data, "retry_in_s");
  if (runId === null) {
    const detail = [event.reason, event.text].filter(Boolean).join(": ") || null;
    putNotice(session, event, { tone: "error", text: "This message could not be processed.", detail });
  } else if (retryInS !== null) { // else the end of the run says it
    const failure = getFailure(session, runId) ?? newFailure(event, runId);
    const retryAt = event.timestamp_ms + retryInS * 1000;
    session.putItem({ ...failure, attempts: failure.attempts + 1, status: "retrying", cause: event.text ?? event.reason, retryAt });
  }
}

/** The answer of a run was replaced: the run and its messages leave the log, and what it has sent is named. */
export function applySuperseded(session: SessionBuilder, event: SessionEvent): void {
  const runId = getString(event.data, "run_id");
  const question = getString(event.data, "envelope_id");
  const messages = new Set(getList(event.data, "messages"));
  const askedAt = question === null ? null : (session.getItem(question)?.seq ?? null);
  session.removeItems((item) => {
    switch (item.kind) {
      case "user": return messages.has(item.key);
      case "notice": return item.retryOf !== null && item.retryOf === question;
      case "handoff": return askedAt !== null && item.seq > askedAt && item.reason !== MANUAL_SWITCH;
      case "subagent": return false; // it goes on
      default: return item.runId === runId;
    }
  });
  const tools = getList(event.data, "sends").map((one) => getString(getRecord({ one }, "one"), "tool") ?? "a tool");
  if (tools.length === 0) return;
  const text = `The answer before this one was replaced. ${tools.length === 1 ? "A message that it had sent stays" : `${tools.length} messages that it had sent stay`} sent.`;
  putNotice(session, event, { tone: "plain", text, detail: [...new Set(tools)].join(", ") });
}

export function applyMcpServer(session: SessionBuilder, event: SessionEvent): void {
  const server = getString(event.data, "server") ?? "";
  putNotice(session, event, { tone: "warning", text: `The MCP server ${server} cannot be used. The agent continues without its tools.` });
}

/** The model goes on with a summary in place of the oldest part of the conversation. The messages stay in the log. */
export function applyCompacted(session: SessionBuilder, event: SessionEvent): void {
  const summary = getString(event.data, "summary");
  const before = getNumber(event.data, "tokens_before"), after = getNumber(event.data, "tokens_after");
  const detail = before === null || after === null ? null : `About ${before.toLocaleString("en-US")} tokens, now ${after.toLocaleString("en-US")}.`;
  const text = summary === null
    ? "The conversation got too long for the model. Its beginning is left out, because it could not be summarised."
    : "The conversation got too long for the model. It continues with a summary of the beginning.";
  putNotice(session, event, { tone: summary === null ? "warning" : "plain", text, detail, folded: summary });
}

export function applyGap(session: SessionBuilder, event: SessionEvent): void {
  putNotice(session, event, { tone: "warning", text: "Older events of this conversation have been removed.", detail: null });
}

function putNotice(
  session: SessionBuilder, event: SessionEvent, notice: Pick<NoticeItem, "tone" | "text"> & Partial<NoticeItem>,
): void {
  const { seq, timestamp_ms: at, reason: detail } = event;
  session.putItem({ kind: "notice", key: `notice-${seq}`, seq, at, detail, folded: null, retryOf: null, ...notice });
}
