// Sends messages, and retries until the server has accepted them. Every attempt uses the same client id, so the server
// accepts a message once. The messages of one conversation are sent one after the other, in the order they were written.
import type { ApiClient } from "../api/client";
import { ApiError, errorMessage } from "../api/errors";
import { newId } from "./ids";
import { Observable } from "./observable";
import { parseList, tabStore } from "./storage";
import type { SentFile } from "./uploads";

const STORAGE_KEY = "outgoing";

/** What a message does while a run is in progress: wait for its end, join it, or stop it first. */
export type SendMode = "message" | "steer" | "interrupt";

/** A message that the log does not show yet. It is stored as JSON in the tab, so its fields must stay compatible. */
export interface PendingMessage {
  clientId: string;
  sessionId: string;
  text: string;
  attachments?: readonly SentFile[];
  at: number;
  how: SendMode;
  /** The agent of a new conversation ("" for the default); null if the conversation exists. */
  agent: string | null;
  state: "sending" | "waiting" | "accepted" | "refused";
  tries: number;
  why: string | null;
}

export type PendingMessages = readonly PendingMessage[];

/** The same list if nothing matches, so that subscribers are not notified. */
function withoutMatching(list: PendingMessages, gone: (one: PendingMessage) => boolean): PendingMessages {
  return list.some(gone) ? list.filter((one) => !gone(one)) : list;
}

/** The next message of a conversation to send: the oldest one. */
function nextToSend(list: PendingMessages, sessionId: string): PendingMessage | null {
  return list.find((one) => one.sessionId === sessionId && (one.state === "sending" || one.state === "waiting")) ?? null;
}

/** Whether the conversation has messages that are accepted or will be sent, but that the log does not show yet. */
export function hasPending(list: PendingMessages, sessionId: string): boolean {
  return list.some((one) => one.sessionId === sessionId && one.state !== "refused");
}

const RETRY_FIRST_MS = 800;
const RETRY_MAX_MS = 15_000;

/** Milliseconds to wait after this many attempts. */
export function retryDelay(tries: number): number {
  return Math.min(RETRY_FIRST_MS * 2 ** Math.max(0, tries - 1), RETRY_MAX_MS);
}

export function parsePending(text: string | null): PendingMessages {
  return parseList<PendingMessage>(text, (one) => typeof one.clientId === "string");
}

export class MessageSender {
  readonly pending = new Observable<PendingMessages>(parsePending(tabStore.get(STORAGE_KEY)));
  private readonly timers = new Map<string, ReturnType<typeof setTimeout>>();

  constructor(
    private readonly api: () => ApiClient,
    private readonly onAccepted: (one: PendingMessage) => void,
  ) {
    this.pending.subscribe(() => tabStore.set(STORAGE_KEY, JSON.stringify(this.pending.get())));
  }

  add(one: Pick<PendingMessage, "sessionId" | "text" | "how" | "agent" | "attachments">): void {
    const clientId = newId();
    this.pending.update((list) => [...list, { ...one, clientId, at: Date.now(), state: "sending", tries: 0, why: null }]);
    void this.send(clientId);
  }

  /** Send everything that is not accepted yet: after a reload, and when the network is back. */
  resume(): void {
    for (const one of this.pending.get()) if (one.state !== "refused") this.retry(one.clientId);
  }

  retry(clientId: string): void {
    this.cancelRetry(clientId);
    this.update(clientId, { state: "sending" });
    void this.send(clientId);
  }

  discard(clientId: string): void {
    this.cancelRetry(clientId);
    const dropped = this.pending.get().find((one) => one.clientId === clientId);
    this.pending.update((list) => withoutMatching(list, (one) => one.clientId === clientId));
    if (dropped !== undefined) this.sendNext(dropped);
  }

  /** Discard everything that is not accepted yet. */
  clear(): void {
    for (const clientId of [...this.timers.keys()]) this.cancelRetry(clientId);
    this.pending.set([]);
  }

  /** Remove the messages that the log now shows. */
  confirm(ids: ReadonlySet<string>): void {
    this.pending.update((list) => withoutMatching(list, (one) => ids.has(one.clientId)));
  }

  private async send(clientId: string): Promise<void> {
    const list = this.pending.get();
    const one = list.find((found) => found.clientId === clientId);
    if (one === undefined || nextToSend(list, one.sessionId) !== one) return;
    this.update(clientId, { state: "sending", tries: one.tries + 1, why: null });
    try {
      await this.post(one);
      this.update(clientId, { state: "accepted" });
      this.onAccepted(one);
    } catch (error) {
      this.onFailure(one, error);
    }
    this.sendNext(one);
  }

  /** Send the message after this one, unless this one still has to be sent. */
  private sendNext(after: PendingMessage): void {
    const next = nextToSend(this.pending.get(), after.sessionId);
    if (next !== null && next.clientId !== after.clientId) this.retry(next.clientId);
  }

  private async post(one: PendingMessage): Promise<void> {
    const { sessionId, text, clientId: clientMessageId } = one;
    const message = { sessionId, text, clientMessageId, attachments: (one.attachments ?? []).map((file) => file.file_id) };
    if (one.how === "steer") {
      await this.api().steer(message);
      return;
    }
    if (one.agent !== null) await this.api().createSession(sessionId, one.agent || null);
    await this.api().sendMessage(message, one.how === "interrupt" ? "interrupt" : "queue");
  }

  private onFailure(one: PendingMessage, error: unknown): void {
    const tries = one.tries + 1;
    if (error instanceof ApiError && error.code === "no_active_run") {
      // The run ended before the steering message arrived: send it as the next message.
      this.update(one.clientId, { how: "message", tries });
      this.retry(one.clientId);
    } else if (error instanceof ApiError && error.isTransient) {
      this.update(one.clientId, { state: "waiting", why: errorMessage(error) });
      const wait = error.retryAfterS === null ? retryDelay(tries) : error.retryAfterS * 1000;
      this.timers.set(one.clientId, setTimeout(() => this.retry(one.clientId), wait));
    } else this.update(one.clientId, { state: "refused", why: errorMessage(error) });
  }

  private update(clientId: string, change: Partial<PendingMessage>): void {
    this.pending.update((list) => list.map((one) => (one.clientId === clientId ? { ...one, ...change } : one)));
  }

  private cancelRetry(clientId: string): void {
    clearTimeout(this.timers.get(clientId));
    this.timers.delete(clientId);
  }
}
