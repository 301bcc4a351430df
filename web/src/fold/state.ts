// The state of a conversation as the page shows it: the result of folding its events.

export interface Usage {
  requests: number;
  inputTokens: number;
  outputTokens: number;
  totalTokens: number;
}

export interface UserItem {
  kind: "user";
  key: string;
  seq: number;
  at: number;
  text: string;
  sender: string;
  clientId: string | null;
  steer: boolean;
  /** When the active run read it, by the receipt. */
  seenAt: number | null;
  /** The run that answers it. */
  runId: string | null;
  attachments: readonly Attachment[];
}

export interface AnswerItem {
  kind: "answer";
  key: string;
  seq: number;
  at: number;
  agent: string | null;
  text: string;
  streaming: boolean;
  attempt: number;
  tokenCount: number;
  runId: string | null;
  replyTo: string | null;
  usage: Usage | null;
  attachments: readonly Attachment[];
}

export interface Attachment {
  /** The id of a file that a user uploaded. */
  fileId: string | null;
  /** A file of an agent is fetched by its hash and the seq of the event that shows it. */
  sha256: string | null;
  seq: number;
  name: string;
  mediaType: string | null;
  bytes: number | null;
}

export interface PythonBlock {
  code: string;
  output: string;
  /** The line about its messages, as the model gets it. */
  status: string;
  held: number;
  sent: number;
  failed: number;
  failures: readonly string[];
  ok: boolean;
  error: string | null;
}

export interface ToolItem {
  kind: "tool";
  key: string;
  seq: number;
  at: number;
  name: string;
  agent: string | null;
  args: Readonly<Record<string, unknown>>;
  status: "running" | "success" | "error" | "interrupted";
  result: string | null;
  error: string | null;
  durationMs: number | null;
  runId: string | null;
  /** Run by a user, not by a model. */
  manual: boolean;
  block: PythonBlock | null;
}

export interface HandoffItem {
  kind: "handoff";
  key: string;
  seq: number;
  at: number;
  from: string | null;
  to: string;
  reason: string | null;
}

export interface ApprovalItem {
  kind: "approval";
  key: string;
  seq: number;
  at: number;
  callId: string;
  tool: string;
  agent: string | null;
  runId: string | null;
  /** Long values are truncated in the event; the list of approvals has them in full. */
  args: Readonly<Record<string, unknown>>;
  /** `stopped`: the run ended before a decision. */
  status: "pending" | "approved" | "rejected" | "expired" | "stopped";
  decidedBy: string | null;
  decidedAt: number | null;
  reason: string | null;
  expiresAt: number | null;
}

/** An agent that this conversation's agent has started, in a conversation of its own. */
export interface SubagentItem {
  kind: "subagent";
  key: string;
  seq: number;
  at: number;
  /** The id of its conversation. */
  id: string;
  name: string;
  task: string;
  agent: string | null;
}

export interface BudgetUse {
  budget: string;
  /** The run, conversation or user that it is for; empty for the day of the deployment. */
  name: string;
  /** What is used and the limit, for each unit that has one. */
  units: readonly { unit: "tokens" | "calls" | "cost_usd"; used: number; limit: number }[];
}

/** Most of a budget is used, or all of it: then the run waits. */
export interface BudgetItem {
  kind: "budget";
  key: string;
  seq: number;
  at: number;
  agent: string | null;
  runId: string | null;
  /** The conversation of the subagent whose run waits. */
  subagentId: string | null;
  status: "warning" | "waiting" | "resumed" | "stopped";
  budgets: readonly BudgetUse[];
  resumesAt: number | null;
}

export interface NoticeItem {
  kind: "notice";
  key: string;
  seq: number;
  at: number;
  tone: "plain" | "warning" | "error";
  text: string;
  detail: string | null;
  /** A longer text, which is shown when the notice is opened. */
  folded: string | null;
  /** The message that can be retried. */
  retryOf: string | null;
}

/** The failed attempts of a run, as one item. */
export interface FailureItem {
  kind: "failure";
  key: string;
  seq: number;
  at: number;
  runId: string;
  /** Number of attempts that have failed. */
  attempts: number;
  cause: string | null;
  status: "retrying" | "failed" | "recovered" | "stopped";
  /** When the next attempt starts; null while an attempt is running, and after the end. */
  retryAt: number | null;
  /** The message that can be retried. */
  retryOf: string | null;
}

export type LogItem = UserItem | AnswerItem | ToolItem | HandoffItem | ApprovalItem | BudgetItem | SubagentItem | NoticeItem | FailureItem;

export interface Span {
  key: string;
  kind: "answer" | "tool";
  name: string;
  agent: string | null;
  startedAt: number;
  endedAt: number | null;
  failed: boolean;
}

export type RunStatus = "running" | "finished" | "failed" | "stopped";

export interface Run {
  id: string;
  agent: string | null;
  messageId: string | null;
  kind: string | null;
  status: RunStatus;
  attempt: number;
  /** Whether an approval was requested since the run last started or resumed. */
  approvalRequested: boolean;
  /** How often the run resumed after an approval. The server counts each as a new attempt; the page does not. */
  resumeCount: number;
  startedAt: number;
  endedAt: number | null;
  reason: string | null;
  usage: Usage | null;
  omittedRuns: number;
  spans: readonly Span[];
}

export interface SessionState {
  /** The last seq that was folded. */
  cursor: number;
  eventCount: number;
  items: readonly LogItem[];
  itemIndex: ReadonlyMap<string, number>;
  runs: readonly Run[];
  runIndex: ReadonlyMap<string, number>;
  clientIds: ReadonlySet<string>;
  activeAgent: string | null;
  usage: Usage;
  usageByAgent: Readonly<Record<string, Usage>>;
  handoffs: Readonly<Record<string, number>>;
}

export const NO_USAGE: Usage = { requests: 0, inputTokens: 0, outputTokens: 0, totalTokens: 0 };

export const EMPTY_SESSION: SessionState = {
  cursor: 0,
  eventCount: 0,
  items: [],
  itemIndex: new Map(),
  runs: [],
  runIndex: new Map(),
  clientIds: new Set(),
  activeAgent: null,
  usage: NO_USAGE,
  usageByAgent: {},
  handoffs: {},
};

/** The run in progress, if any; tools that a user runs manually do not count. */
export function activeRun(session: SessionState): Run | null {
  return session.runs.findLast((run) => run.status === "running" && run.kind === null) ?? null;
}

/** The last run, if it has ended and nothing waits behind it: its answer can be replaced. */
export function replaceableRun(session: SessionState): Run | null {
  if (activeRun(session) !== null || isWaitingForRun(session)) return null;
  const last = session.runs.findLast((run) => run.kind === null) ?? null;
  const question = last?.messageId == null ? undefined : session.items[session.itemIndex.get(last.messageId) ?? -1];
  return question?.kind === "user" && !question.sender.startsWith("agent:") ? last : null;
}

/** Whether the last item is a message that no run has started on yet. */
export function isWaitingForRun(session: SessionState): boolean {
  const last = session.items.at(-1);
  return last?.kind === "user" && last.runId === null && last.seenAt === null;
}

/** The failed attempts of a run that has not ended yet. */
export function pendingFailure(session: SessionState, run: Run): FailureItem | null {
  const item = session.items[session.itemIndex.get(failureKey(run.id)) ?? -1];
  return item?.kind === "failure" && item.status === "retrying" ? item : null;
}

export function failureKey(runId: string): string {
  return `failure:${runId}`;
}

/** Whether the run is paused until a user decides on an approval. */
export function isAwaitingApproval(session: SessionState, run: Run): boolean {
  return session.items.some((item) => item.kind === "approval" && item.status === "pending" && item.runId === run.id);
}

/** Whether the run is paused until a budget is raised. */
export function isAwaitingBudget(session: SessionState, run: Run): boolean {
  return session.items.some((item) => item.kind === "budget" && item.status === "waiting" && item.runId === run.id);
}

export type WorkState = "waiting" | "working" | "awaiting_approval" | "awaiting_budget" | Exclude<RunStatus, "running">;

/** The state of the last run, for showing a conversation from outside. */
export function workState(session: SessionState): WorkState {
  const run = session.runs.findLast((one) => one.kind === null);
  if (run === undefined) return "waiting";
  if (run.status !== "running") return run.status;
  if (isAwaitingApproval(session, run)) return "awaiting_approval";
  return isAwaitingBudget(session, run) ? "awaiting_budget" : "working";
}

export function lastAnswer(session: SessionState): AnswerItem | null {
  return session.items.findLast((item): item is AnswerItem => item.kind === "answer") ?? null;
}
