// What a person has sent and the log does not show yet. Pure; the sending is in `sender.ts`.

export interface Outgoing {
  clientId: string;
  sessionId: string;
  text: string;
  at: number;
  how: "message" | "steer";
  /** Whom a new conversation is opened with. */
  agent: string | null;
  state: "sending" | "waiting" | "accepted" | "refused";
  tries: number;
  why: string | null;
}

export type OutgoingList = readonly Outgoing[];

export function changed(list: OutgoingList, clientId: string, change: Partial<Outgoing>): OutgoingList {
  return list.map((one) => (one.clientId === clientId ? { ...one, ...change } : one));
}

export function without(list: OutgoingList, gone: (one: Outgoing) => boolean): OutgoingList {
  return list.some(gone) ? list.filter((one) => !gone(one)) : list;
}

/** The next of a conversation that is to go: what was written first arrives first. */
export function nextOf(list: OutgoingList, sessionId: string): Outgoing | null {
  return list.find((one) => one.sessionId === sessionId && (one.state === "sending" || one.state === "waiting")) ?? null;
}

/** Whether anything of the conversation has left, or will, that the log does not show. */
export function isOnItsWay(list: OutgoingList, sessionId: string): boolean {
  return list.some((one) => one.sessionId === sessionId && one.state !== "refused");
}

const AGAIN_FIRST_MS = 800;
const AGAIN_SLOWEST_MS = 15_000;

/** How long until it is sent again, after so many tries. */
export function againIn(tries: number): number {
  return Math.min(AGAIN_FIRST_MS * 2 ** Math.max(0, tries - 1), AGAIN_SLOWEST_MS);
}

export function parseOutgoing(text: string | null): OutgoingList {
  if (text === null) return [];
  try {
    const found: unknown = JSON.parse(text);
    return Array.isArray(found) ? (found as Outgoing[]).filter((one) => typeof one.clientId === "string") : [];
  } catch (error) {
    if (error instanceof SyntaxError) return [];
    throw error;
  }
}
