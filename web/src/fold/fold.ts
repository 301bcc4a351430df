// Events → session state. Pure: the same events give the same state, in one batch or in many.
import type { SessionEvent } from "../api/types";
import { applyApproval, applyBudget, applyHandoff, applyReceipt, applySubagent } from "./agentEvents";
import { applyAnswer, applyToken, applyUserMessage } from "./messages";
import { applyCompacted, applyError, applyGap, applyMcpServer, applyRun, applySuperseded } from "./runs";
import { SessionBuilder } from "./sessionBuilder";
import type { SessionState } from "./state";
import { applyBlock, applyToolCall, applyToolResult } from "./tools";

type EventHandler = (session: SessionBuilder, event: SessionEvent) => void;

const HANDLERS = new Map<string, EventHandler>(Object.entries({
  message: (session, event) => (event.role === "user" ? applyUserMessage(session, event) : applyAnswer(session, event)),
  token: applyToken,
  tool_call: applyToolCall,
  tool_result: applyToolResult,
  block: applyBlock,
  handoff: applyHandoff,
  approval: applyApproval,
  budget: applyBudget,
  subagent: applySubagent,
  message_received: applyReceipt,
  mcp_server: applyMcpServer,
  compacted: applyCompacted,
  error: applyError,
  gap: applyGap,
  run: applyRun,
  superseded: applySuperseded,
  session: (session, event) => {
    const agent = event.data["active_agent"];
    if (typeof agent === "string") session.activeAgent = agent;
  },
} satisfies Record<string, EventHandler>));

/** The state after these events. Events up to the cursor are skipped, so a repeated delivery changes nothing. */
export function fold(before: SessionState, events: readonly SessionEvent[]): SessionState {
  const session = new SessionBuilder(before);
  for (const event of events) {
    if (event.seq <= session.cursor) continue;
    session.cursor = event.seq;
    session.eventCount += 1;
    HANDLERS.get(event.type)?.(session, event);
  }
  return session.eventCount === before.eventCount ? before : session.build();
}
