// The conversations of the list: the most recent ones, which the server keeps up to date, and older ones that were loaded.
import { SESSIONS_PAGE } from "../api/client";
import type { SessionCounts, SessionState, SessionSummary } from "../api/types";

export type Sessions = ReadonlyMap<string, SessionSummary>;

/** The most recent sessions, and those of the known ones that are older than all of them. The others were deleted. */
export function mergeSessions(known: Sessions | null, recent: readonly SessionSummary[]): Sessions {
  const merged = new Map(recent.map((one) => [one.session_id, one]));
  if (recent.length < SESSIONS_PAGE) return merged; // these are all
  const oldest = Math.min(...recent.map((one) => one.last_active_ms));
  for (const [id, one] of known ?? []) if (one.last_active_ms <= oldest && !merged.has(id)) merged.set(id, one);
  return merged;
}

export const SESSION_STATES: readonly SessionState[] = ["waiting", "running", "failed"];

/** The state of the last run, as the server filters by it. */
export function stateOf(session: SessionSummary): SessionState | null {
  if (session.approvals > 0 || session.client_calls > 0 || session.budget) return "waiting";
  return session.run_status === "running" || session.run_status === "failed" ? session.run_status : null;
}

export function countStates(sessions: Iterable<SessionSummary>): SessionCounts {
  const counts: SessionCounts = { waiting: 0, running: 0, failed: 0, complete: true };
  for (const session of sessions) {
    const state = stateOf(session);
    if (state !== null) counts[state] += 1;
  }
  return counts;
}
