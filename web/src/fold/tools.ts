// Tool calls and Python blocks.
import type { SessionEvent } from "../api/types";
import { getNumber, getRecord, getString, getStrings } from "./eventData";
import type { SessionBuilder } from "./sessionBuilder";
import type { PythonBlock, Span, ToolItem } from "./state";

const CODE_TOOL = "run_python";
const STATUS_LINE_START = "[Messages: ";
const STATUS_LINE = /^\[Messages: [^\]\n]*\](?:\n- .*)*$/; // the card shows it apart from the output

export function applyToolCall(session: SessionBuilder, event: SessionEvent): void {
  const tool = newToolItem(session, event);
  const turn = `${tool.runId}/${getNumber(event.data, "turn") ?? 0}`;
  if (!tool.manual && !session.hasSpan(tool.runId, turn)) session.putModelSpan(tool.runId, turn, tool.agent, event.timestamp_ms);
  session.putItem(tool);
  session.putSpan(tool.runId, toolSpan(tool, null));
}

export function applyToolResult(session: SessionBuilder, event: SessionEvent): void {
  const known = session.getItem(toolKey(event));
  const begun = known?.kind === "tool" ? known : newToolItem(session, event);
  const failed = getString(event.data, "status") === "error" || (event.reason !== null && event.text === null);
  const tool: ToolItem = {
    ...begun,
    status: failed ? "error" : "success",
    result: event.text,
    error: event.reason,
    durationMs: getNumber(event.data, "duration_ms") ?? event.timestamp_ms - begun.at,
  };
  session.putItem(tool);
  session.putSpan(tool.runId, toolSpan(tool, event.timestamp_ms));
}

/** The outcome of a Python block. It is an event of its own, next to the tool's result, and shown on the same card. */
export function applyBlock(session: SessionBuilder, event: SessionEvent): void {
  const known = session.getItem(toolKey(event));
  const begun = known?.kind === "tool" ? known : { ...newToolItem(session, event), name: CODE_TOOL };
  const block = parseBlock(event);
  const settled = block.ok ? ("success" as const) : ("error" as const);
  session.putItem({ ...begun, block, status: settled, durationMs: getNumber(event.data, "duration_ms") ?? begun.durationMs });
}

function parseBlock(event: SessionEvent): PythonBlock {
  const { data } = event;
  const held = getNumber(data, "held") ?? 0;
  const sent = getNumber(data, "sent") ?? 0;
  const failed = getNumber(data, "failed") ?? 0;
  const ok = getString(data, "status") === "success";
  return {
    code: getString(data, "code") ?? "",
    output: withoutStatusLine(getString(data, "output") ?? ""),
    status: blockStatusLine(ok, held, sent, failed),
    held,
    sent,
    failed,
    failures: getStrings(data, "failures"),
    ok,
    error: event.reason,
  };
}

/** Only the last possible place is tried: a search from every place would take quadratic time on a long output. */
function withoutStatusLine(output: string): string {
  const start = output.lastIndexOf(STATUS_LINE_START);
  return start >= 0 && STATUS_LINE.test(output.slice(start).trimEnd()) ? output.slice(0, start).trimEnd() : output;
}

/** The same words as the status line that the model gets. */
function blockStatusLine(ok: boolean, held: number, sent: number, failed: number): string {
  if (held === 0) return "";
  if (!ok) return `Messages: ${held} NOT sent (script failed)`;
  return failed > 0 ? `Messages: ${sent} sent, ${failed} failed` : `Messages: ${sent} sent`;
}

function newToolItem(session: SessionBuilder, event: SessionEvent): ToolItem {
  const runId = getString(event.data, "run_id");
  const args = getRecord(event.data, "args");
  const code = getString(args, "code");
  const name = getString(event.data, "name") ?? "tool";
  return {
    kind: "tool",
    key: toolKey(event),
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
    manual: session.getRun(runId)?.kind === "tool" || event.data["run_kind"] === "tool",
    block: name === CODE_TOOL && code !== null ? { ...EMPTY_BLOCK, code } : null,
  };
}

const EMPTY_BLOCK: PythonBlock = {
  code: "", output: "", status: "", held: 0, sent: 0, failed: 0, failures: [], ok: true, error: null,
};

/** The run is part of the key because models reuse call ids in other runs. */
function toolKey(event: SessionEvent): string {
  const id = getString(event.data, "tool_call_id", "call_id") ?? `at-${event.seq}`;
  return `tool:${getString(event.data, "run_id") ?? ""}:${id}`;
}

function toolSpan(tool: ToolItem, to: number | null): Span {
  const { key, name, agent, at, status } = tool;
  return { key, kind: "tool", name, agent, startedAt: at, endedAt: to, failed: status === "error" };
}
