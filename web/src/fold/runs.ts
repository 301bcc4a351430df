// Runs: started, taken over, ended; and the notices about errors and missing events.
import type { SessionEvent } from "../api/types";
import { getNumber, getString } from "./eventData";
import type { SessionBuilder } from "./sessionBuilder";
import type { NoticeItem, Run, RunStatus } from "./state";

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
  if (getString(event.data, "status") === "restarted" && !run.approvalRequested) {
    putNotice(session, event, { tone: "plain", text: "Another worker took over and continued after the last saved step." });
  }
}

function endRun(session: SessionBuilder, run: Run, status: RunStatus, event: SessionEvent): void {
  session.putRun({ ...run, status, endedAt: event.timestamp_ms, reason: event.reason });
  session.closeOpenItems(run.id);
  if (run.kind !== null) return;
  if (status === "stopped") putNotice(session, event, { tone: "plain", text: "Stopped.", retryOf: run.messageId });
  if (status === "failed") putNotice(session, event, { tone: "error", text: "The run failed.", retryOf: run.messageId });
}

export function applyError(session: SessionBuilder, event: SessionEvent): void {
  const retryInS = getNumber(event.data, "retry_in_s");
  const isFinal = retryInS === null;
  if (isFinal && getString(event.data, "run_id") !== null) return; // the notice at the end of the run says it, and offers a retry
  const delay = retryInS !== null && retryInS >= 1 ? `${Math.round(retryInS)} s` : "a moment";
  putNotice(session, event, {
    tone: isFinal ? "error" : "warning",
    text: isFinal ? "This message could not be processed." : `An error occurred. The run is retried after ${delay}.`,
    detail: [event.reason, event.text].filter(Boolean).join(": ") || null,
  });
}

export function applyGap(session: SessionBuilder, event: SessionEvent): void {
  putNotice(session, event, { tone: "warning", text: "Older events of this conversation have been removed.", detail: null });
}

function putNotice(
  session: SessionBuilder, event: SessionEvent, notice: Pick<NoticeItem, "tone" | "text"> & Partial<NoticeItem>,
): void {
  const { seq, timestamp_ms: at, reason: detail } = event;
  session.putItem({ kind: "notice", key: `notice-${seq}`, seq, at, detail, retryOf: null, ...notice });
}
