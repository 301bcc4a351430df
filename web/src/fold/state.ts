// A conversation as the page shows it: what a log of events amounts to.

export interface Usage {
  requests: number;
  input: number;
  output: number;
  total: number;
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
  /** When a run under way saw it: the receipt. */
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
  pieces: number;
  runId: string | null;
  replyTo: string | null;
  usage: Usage | null;
  attachments: readonly Attachment[];
}

export interface Attachment {
  /** What it is fetched by, and the event that shows it; without the first it is only named. */
  sha256: string | null;
  seq: number;
  name: string;
  type: string | null;
  bytes: number | null;
}

export interface Block {
  code: string;
  output: string;
  /** The line about its messages, as the model is told it. */
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
  status: "running" | "success" | "error" | "cut";
  result: string | null;
  error: string | null;
  durationMs: number | null;
  runId: string | null;
  /** Run by a person, not by a model. */
  byHand: boolean;
  block: Block | null;
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
  /** Cut short where they are long; the list of approvals has them whole. */
  args: Readonly<Record<string, unknown>>;
  /** `stopped`: the run has ended, and nobody waits any more. */
  status: "pending" | "approved" | "rejected" | "expired" | "stopped";
  decidedBy: string | null;
  decidedAt: number | null;
  reason: string | null;
  expiresAt: number | null;
}

/** Another agent at work for this one, in a conversation of its own. */
export interface SubagentItem {
  kind: "subagent";
  key: string;
  seq: number;
  at: number;
  /** Its conversation. */
  id: string;
  name: string;
  task: string;
  agent: string | null;
}

export interface NoticeItem {
  kind: "notice";
  key: string;
  seq: number;
  at: number;
  tone: "plain" | "warning" | "error";
  text: string;
  detail: string | null;
  /** The message that may be tried again. */
  retryOf: string | null;
}

export type Item = UserItem | AnswerItem | ToolItem | HandoffItem | ApprovalItem | SubagentItem | NoticeItem;

export interface Span {
  key: string;
  kind: "answer" | "tool";
  name: string;
  agent: string | null;
  from: number;
  to: number | null;
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
  /** Whether a person was asked since it last went on. */
  asked: boolean;
  /** How often it went on after a person had decided: no new attempt, as the log counts one. */
  resumed: number;
  from: number;
  to: number | null;
  reason: string | null;
  usage: Usage | null;
  leftOut: number;
  spans: readonly Span[];
}

export interface Session {
  /** The last seq that was taken in. */
  cursor: number;
  events: number;
  items: readonly Item[];
  places: ReadonlyMap<string, number>;
  runs: readonly Run[];
  runPlaces: ReadonlyMap<string, number>;
  clientIds: ReadonlySet<string>;
  agent: string | null;
  usage: Usage;
  usageByAgent: Readonly<Record<string, Usage>>;
  handoffs: Readonly<Record<string, number>>;
}

export const NO_USAGE: Usage = { requests: 0, input: 0, output: 0, total: 0 };

export const EMPTY: Session = {
  cursor: 0,
  events: 0,
  items: [],
  places: new Map(),
  runs: [],
  runPlaces: new Map(),
  clientIds: new Set(),
  agent: null,
  usage: NO_USAGE,
  usageByAgent: {},
  handoffs: {},
};

/** The run that a person waits for, if any. */
export function runUnderWay(session: Session): Run | null {
  return session.runs.findLast((run) => run.status === "running" && run.kind === null) ?? null;
}

/** Whether the last that a person said has not been taken up yet: an agent is about to begin with it. */
export function isAwaited(session: Session): boolean {
  const last = session.items.at(-1);
  return last?.kind === "user" && last.runId === null && last.seenAt === null;
}

/** Whether the run waits for a person: it goes on when nothing is pending any more. */
export function isPaused(session: Session, run: Run): boolean {
  return session.items.some((item) => item.kind === "approval" && item.status === "pending" && item.runId === run.id);
}

export type WorkState = "waiting" | "working" | "asking" | Exclude<RunStatus, "running">;

/** How the last run of a conversation stands, as somebody else sees it. */
export function workState(session: Session): WorkState {
  const run = session.runs.findLast((one) => one.kind === null);
  if (run === undefined) return "waiting";
  if (run.status !== "running") return run.status;
  return isPaused(session, run) ? "asking" : "working";
}

export function lastAnswer(session: Session): AnswerItem | null {
  return session.items.findLast((item): item is AnswerItem => item.kind === "answer") ?? null;
}
