// Events → session. Pure: the same events make the same session, in one batch or in many.
import type { Event } from "../api/shapes";
import { Draft } from "./draft";
import { takeAnswer, takeToken, takeUser } from "./messages";
import { takeApproval, takeError, takeGap, takeHandoff, takeReceipt, takeSubagent } from "./notices";
import { takeRun } from "./runs";
import type { Session } from "./state";
import { takeBlock, takeCall, takeResult } from "./tools";

type Taker = (draft: Draft, event: Event) => void;

const TAKERS: Readonly<Record<string, Taker>> = {
  message: (draft, event) => (event.role === "user" ? takeUser(draft, event) : takeAnswer(draft, event)),
  token: takeToken,
  tool_call: takeCall,
  tool_result: takeResult,
  block: takeBlock,
  handoff: takeHandoff,
  approval: takeApproval,
  subagent: takeSubagent,
  message_received: takeReceipt,
  error: takeError,
  gap: takeGap,
  run: takeRun,
  session: (draft, event) => {
    const agent = event.data["active_agent"];
    if (typeof agent === "string") draft.agent = agent;
  },
};

/** The session after these events. What it has seen already is passed over, so a repeat does no harm. */
export function fold(session: Session, events: readonly Event[]): Session {
  const draft = new Draft(session);
  for (const event of events) {
    if (event.seq <= draft.cursor) continue;
    draft.cursor = event.seq;
    draft.events += 1;
    TAKERS[event.type]?.(draft, event);
  }
  return draft.events === session.events ? session : draft.done();
}
