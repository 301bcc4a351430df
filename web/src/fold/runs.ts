// Runs: begun, taken over, ended.
import type { Event } from "../api/shapes";
import type { Draft } from "./draft";
import { count, text } from "./reading";
import type { Run, RunStatus } from "./state";

const ENDS: Readonly<Record<string, RunStatus>> = { finished: "finished", failed: "failed", stopped: "stopped" };

export function takeRun(draft: Draft, event: Event): void {
  const id = text(event.data, "run_id");
  if (id === null) return;
  const known = draft.run(id);
  const run = known ?? begin(event, id);
  const ended = ENDS[text(event.data, "status") ?? ""];
  if (ended !== undefined) end(draft, run, ended, event);
  else goOn(draft, run, event);
}

function begin(event: Event, id: string): Run {
  return {
    id,
    agent: event.agent_id,
    messageId: text(event.data, "envelope_id"),
    kind: text(event.data, "run_kind"),
    status: "running",
    attempt: 1,
    asked: false,
    resumed: 0,
    from: event.timestamp_ms,
    to: null,
    reason: null,
    usage: null,
    leftOut: count(event.data, "history_left_out") ?? 0,
    spans: [],
  };
}

function goOn(draft: Draft, run: Run, event: Event): void {
  const resumed = run.resumed + (run.asked ? 1 : 0);
  const attempt = Math.max(1, (count(event.data, "attempt") ?? 1) - resumed);
  draft.putRun({ ...run, status: "running", to: null, attempt, asked: false, resumed });
  const asked = run.messageId === null ? null : draft.item(run.messageId);
  if (asked?.kind === "user" && asked.runId === null) draft.put({ ...asked, runId: run.id });
  if (run.kind === null && draft.agent === null) draft.agent = run.agent;
  if (text(event.data, "status") === "restarted" && !run.asked) {
    notice(draft, event, "plain", "Another worker took over and went on after the last record.", null);
  }
}

function end(draft: Draft, run: Run, status: RunStatus, event: Event): void {
  draft.putRun({ ...run, status, to: event.timestamp_ms, reason: event.reason });
  draft.closeItemsOf(run.id);
  if (run.kind !== null) return;
  if (status === "stopped") notice(draft, event, "plain", "Stopped.", run.messageId);
  if (status === "failed") notice(draft, event, "error", "The run failed.", run.messageId);
}

function notice(
  draft: Draft, event: Event, tone: "plain" | "error", words: string, retryOf: string | null,
): void {
  const { seq, timestamp_ms: at, reason: detail } = event;
  draft.put({ kind: "notice", key: `run-${seq}`, seq, at, tone, text: words, detail, retryOf });
}
