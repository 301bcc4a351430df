// How often to ask, where nothing is pushed: pure, so that it can be tried without a clock.

export const BURST_EVERY_MS = 300;
export const BURST_MS = 6_000;
export const SLOWEST_MS = 15_000;
export const IDLE_MS = 10 * 60_000;
const FIRST_MS = 1_000;
const GROWTH = 1.6;

export interface Pace {
  intervalMs: number;
  burstUntil: number;
  lastActive: number;
}

export function pace(now: number): Pace {
  return { intervalMs: FIRST_MS, burstUntil: 0, lastActive: now };
}

/** Somebody sent something or came back: ask quickly for a while. */
export function burst(now: number): Pace {
  return { intervalMs: FIRST_MS, burstUntil: now + BURST_MS, lastActive: now };
}

/** After an answer: news keep the pace up, silence slows it down. */
export function asked(before: Pace, news: boolean, now: number): Pace {
  if (news) return { ...before, intervalMs: FIRST_MS, burstUntil: Math.max(before.burstUntil, now + FIRST_MS), lastActive: now };
  return { ...before, intervalMs: Math.min(before.intervalMs * GROWTH, SLOWEST_MS) };
}

/** When to ask next: in so many milliseconds, or not before something happens. */
export function nextIn(pace: Pace, visible: boolean, now: number): number | "hidden" | "idle" {
  if (now - pace.lastActive > IDLE_MS) return "idle";
  if (!visible) return "hidden";
  return now < pace.burstUntil ? BURST_EVERY_MS : pace.intervalMs;
}

const RECONNECT_FIRST_MS = 500;
const RECONNECT_SLOWEST_MS = 10_000;

/** How long to wait before the connection is tried again; spread, so that many tabs do not knock together. */
export function reconnectIn(failures: number, chance: number): number {
  const wait = Math.min(RECONNECT_FIRST_MS * 2 ** Math.max(0, failures - 1), RECONNECT_SLOWEST_MS);
  return wait * (0.75 + 0.5 * chance);
}
