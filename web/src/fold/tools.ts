// Tool calls and Python blocks.
import type { Event } from "../api/shapes";
import type { Draft } from "./draft";
import { count, record, text, texts } from "./reading";
import type { Block, Span, ToolItem } from "./state";

const CODE_TOOL = "run_python";
const STATUS_LINE = /\n*\[Messages: [^\]]*\](?:\n- .*)*\s*$/; // which the card shows apart from what was printed

export function takeCall(draft: Draft, event: Event): void {
  const tool = begin(draft, event);
  const turn = `${tool.runId}/${count(event.data, "turn") ?? 0}`;
  if (!tool.byHand && !draft.hasSpan(tool.runId, turn)) draft.putTurn(tool.runId, turn, tool.agent, event.timestamp_ms);
  draft.put(tool);
  draft.putSpan(tool.runId, span(tool, null));
}

export function takeResult(draft: Draft, event: Event): void {
  const known = draft.item(keyOf(event));
  const begun = known?.kind === "tool" ? known : begin(draft, event);
  const failed = text(event.data, "status") === "error" || (event.reason !== null && event.text === null);
  const tool: ToolItem = {
    ...begun,
    status: failed ? "error" : "success",
    result: event.text,
    error: event.reason,
    durationMs: count(event.data, "duration_ms") ?? event.timestamp_ms - begun.at,
  };
  draft.put(tool);
  draft.putSpan(tool.runId, span(tool, event.timestamp_ms));
}

/** What a block did, told apart from its tool's result: shown on the same card. */
export function takeBlock(draft: Draft, event: Event): void {
  const known = draft.item(keyOf(event));
  const begun = known?.kind === "tool" ? known : { ...begin(draft, event), name: CODE_TOOL };
  const block = blockOf(event);
  const settled = block.ok ? ("success" as const) : ("error" as const);
  draft.put({ ...begun, block, status: settled, durationMs: count(event.data, "duration_ms") ?? begun.durationMs });
}

function blockOf(event: Event): Block {
  const { data } = event;
  const held = count(data, "held") ?? 0;
  const sent = count(data, "sent") ?? 0;
  const failed = count(data, "failed") ?? 0;
  const ok = text(data, "status") === "success";
  return {
    code: text(data, "code") ?? "",
    output: (text(data, "output") ?? "").replace(STATUS_LINE, ""),
    status: statusOf(ok, held, sent, failed),
    held,
    sent,
    failed,
    failures: texts(data, "failures"),
    ok,
    error: event.reason,
  };
}

/** As the model is told it. */
function statusOf(ok: boolean, held: number, sent: number, failed: number): string {
  if (held === 0) return "";
  if (!ok) return `Messages: ${held} NOT sent (script failed)`;
  return failed > 0 ? `Messages: ${sent} sent, ${failed} failed` : `Messages: ${sent} sent`;
}

function begin(draft: Draft, event: Event): ToolItem {
  const runId = text(event.data, "run_id");
  const args = record(event.data, "args");
  const code = text(args, "code");
  const name = text(event.data, "name") ?? "tool";
  return {
    kind: "tool",
    key: keyOf(event),
    seq: event.seq,
    at: event.timestamp_ms,
    name,
    agent: event.agent_id,
    args,
    status: "running",
    result: null,
    error: null,
    durationMs: null,
    runId,
    byHand: draft.run(runId)?.kind === "tool" || event.data["run_kind"] === "tool",
    block: name === CODE_TOOL && code !== null ? { ...NO_BLOCK, code } : null,
  };
}

const NO_BLOCK: Block = {
  code: "", output: "", status: "", held: 0, sent: 0, failed: 0, failures: [], ok: true, error: null,
};

/** A call is known by its run and its id; models reuse ids in other runs. */
function keyOf(event: Event): string {
  const id = text(event.data, "tool_call_id", "call_id") ?? `at-${event.seq}`;
  return `tool:${text(event.data, "run_id") ?? ""}:${id}`;
}

function span(tool: ToolItem, to: number | null): Span {
  const { key, name, agent, at, status } = tool;
  return { key, kind: "tool", name, agent, from: at, to, failed: status === "error" };
}
