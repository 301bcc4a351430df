// Polling, the fallback where streams are blocked: one round of requests, and how long to wait before the next.
import type { ApiClient } from "../api/client";
import { ApiError } from "../api/errors";
import type { Cursors, UpdateHandlers } from "./stream";

const EVENTS_PER_PAGE = 1000;

/** Fetch the session list and the new events of each session. Returns whether there was anything new. */
export async function pollOnce(api: ApiClient, cursors: Cursors, handlers: UpdateHandlers): Promise<boolean> {
  const { sessions } = await api.sessions();
  handlers.onSessions(sessions);
  const found = await Promise.all([...cursors].map(([id, since]) => pollSession(api, id, since, handlers)));
  handlers.onData();
  return found.includes(true);
}

async function pollSession(api: ApiClient, id: string, since: number, handlers: UpdateHandlers): Promise<boolean> {
  try {
    let after = since;
    for (;;) {
      const page = await api.events(id, after, EVENTS_PER_PAGE);
      if (page.events.length > 0) handlers.onEvents(id, page.events);
      if (!page.has_more) return page.next_since > since;
      after = page.next_since;
    }
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 404) handlers.onEnded(id, "unknown");
    else if (error.code === "cursor_gone" || error.code === "bad_cursor") handlers.onReset(id);
    else if (error.status === 410) handlers.onEnded(id, "deleted");
    else throw error;
    return true;
  }
}

// The schedule is pure, so that it can be tested without a clock.

export const BURST_INTERVAL_MS = 300;
export const BURST_DURATION_MS = 6_000;
export const INTERVAL_MAX_MS = 15_000;
export const IDLE_AFTER_MS = 10 * 60_000;
const INTERVAL_FIRST_MS = 1_000;
const INTERVAL_GROWTH = 1.6;

export interface PollSchedule {
  intervalMs: number;
  burstUntil: number;
  lastActive: number;
}

export function newSchedule(now: number): PollSchedule {
  return { intervalMs: INTERVAL_FIRST_MS, burstUntil: 0, lastActive: now };
}

/** After the user sent something or came back: poll quickly for a while. */
export function burstSchedule(now: number): PollSchedule {
  return { intervalMs: INTERVAL_FIRST_MS, burstUntil: now + BURST_DURATION_MS, lastActive: now };
}

/** New events keep the interval short; each poll without any makes it longer. */
export function afterPoll(before: PollSchedule, foundNew: boolean, now: number): PollSchedule {
  if (foundNew) return { ...before, intervalMs: INTERVAL_FIRST_MS, burstUntil: Math.max(before.burstUntil, now + INTERVAL_FIRST_MS), lastActive: now };
  return { ...before, intervalMs: Math.min(before.intervalMs * INTERVAL_GROWTH, INTERVAL_MAX_MS) };
}

/** Milliseconds until the next poll; "hidden" and "idle" wait until the user comes back. */
export function nextPollDelay(schedule: PollSchedule, visible: boolean, now: number): number | "hidden" | "idle" {
  if (now - schedule.lastActive > IDLE_AFTER_MS) return "idle";
  if (!visible) return "hidden";
  return now < schedule.burstUntil ? BURST_INTERVAL_MS : schedule.intervalMs;
}
