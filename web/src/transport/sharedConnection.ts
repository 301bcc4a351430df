// The connection to the server that all tabs of a browser share: it follows every session that any tab shows, and sends
// each tab the updates that it has subscribed to. It streams, and polls where streams are blocked.
import { ApiClient } from "../api/client";
import { ApiError } from "../api/errors";
import type { SessionEvent, SessionSummary } from "../api/types";
import { afterPoll, burstSchedule, newSchedule, nextPollDelay, pollOnce } from "./polling";
import type { ConnectionStatus, FromTab, SendToTab } from "./protocol";
import { followStream, StreamBlocked, type UpdateHandlers } from "./stream";

const SESSIONS_MAX = 50; // per stream; the server's limit
const BLOCKED_STREAMS_MAX = 2; // refused streams in a row before polling starts; one that delivers no events is enough
const STREAM_RETRY_MS = 120_000; // how long to poll before a stream is tried again
const UNUSED_SESSIONS_MAX = 10; // sessions without a tab that are tolerated before a new request drops them
const UPDATE_DELAY_MS = 15; // subscription changes within this time make one new request
const RECONNECT_FIRST_MS = 500;
const RECONNECT_MAX_MS = 10_000;

export interface Subscriber {
  send: SendToTab;
  /** Session id → the last seq that this tab has received. */
  cursors: Map<string, number>;
  visible: boolean;
}

export class SharedConnection {
  private readonly subscribers = new Set<Subscriber>();
  private readonly api: ApiClient;
  private cursors = new Map<string, number>();
  private sessions: Map<string, SessionSummary> | null = null;
  private status: ConnectionStatus = { state: "connecting" };
  private request: AbortController | null = null;
  private updateTimer: ReturnType<typeof setTimeout> | null = null;
  private wakeUp: (() => void) | null = null;
  private failures = 0;
  private wasLost = false;
  private blockedStreams = 0;
  private pollingSince = 0;
  private pollSchedule = newSchedule(0);
  private online = true;
  private running = false;
  private mayStream = true;
  private isPolling = false;

  constructor(base: string, token: string | null, private readonly shared: boolean) {
    this.api = new ApiClient(base, token);
  }

  // --- tabs

  addSubscriber(subscriber: Subscriber): void {
    this.subscribers.add(subscriber);
    subscriber.send({ kind: "status", status: this.status, shared: this.shared });
    if (this.sessions !== null) subscriber.send({ kind: "sessions", sessions: [...this.sessions.values()] });
    if (this.running) this.expectUpdates();
    this.scheduleUpdate();
  }

  removeSubscriber(subscriber: Subscriber): void {
    this.subscribers.delete(subscriber);
    this.scheduleUpdate();
    if (this.subscribers.size === 0) this.interrupt();
  }

  subscribe(subscriber: Subscriber, sessions: Readonly<Record<string, number>>): void {
    subscriber.cursors = new Map(Object.entries(sessions));
    this.scheduleUpdate();
  }

  setVisible(subscriber: Subscriber, visible: boolean): void {
    subscriber.visible = visible;
    if (visible) this.expectUpdates();
  }

  /** Poll faster for a while: the user did something, or came back to a tab. */
  expectUpdates(): void {
    this.pollSchedule = burstSchedule(Date.now());
    if (this.status.state !== "live") this.wake();
  }

  setOnline(online: boolean): void {
    if (online === this.online) return;
    this.online = online;
    if (online) this.wake();
    else this.interrupt();
  }

  /** Without permission the connection polls. It is given to one tab where each tab has a connection of its own. */
  setMayStream(mayStream: boolean): void {
    if (mayStream === this.mayStream) return;
    this.mayStream = mayStream;
    if (this.running) this.interrupt();
  }

  // --- the connection

  private async run(): Promise<void> {
    this.running = true;
    while (this.subscribers.size > 0) {
      const { signal } = (this.request = new AbortController());
      try {
        const handlers = this.handlersFor(signal);
        this.isPolling = this.shouldPoll();
        await (this.isPolling ? this.poll(handlers, signal) : followStream(this.api, this.cursors, handlers, signal));
      } catch (error) {
        if (!signal.aborted) await this.onFailure(error);
        else if (!this.online) await this.waitOffline();
      }
    }
    this.running = false;
  }

  private shouldPoll(): boolean {
    return !this.mayStream || (this.blockedStreams >= BLOCKED_STREAMS_MAX && Date.now() - this.pollingSince < STREAM_RETRY_MS);
  }

  private async onFailure(error: unknown): Promise<void> {
    if (error instanceof ApiError && error.status === 401) {
      this.setStatus({ state: "unauthorized" });
      await this.waitForWake(null);
      return;
    }
    if (!(error instanceof StreamBlocked || error instanceof ApiError)) console.error("the connection failed", error);
    if (!this.isPolling && (await this.isOnlyStreamBlocked(error))) {
      this.blockedStreams = error instanceof StreamBlocked ? BLOCKED_STREAMS_MAX : this.blockedStreams + 1;
      if (this.blockedStreams >= BLOCKED_STREAMS_MAX) {
        this.pollingSince = Date.now();
        this.wasLost = true;
        return;
      }
    } else if (!this.isPolling) this.blockedStreams = 0;
    this.failures += 1;
    this.wasLost = true;
    const wait = reconnectDelay(this.failures, Math.random());
    // The first failure is retried without a word: most are short, and the banner would only flash.
    if (this.failures > 1 || !this.online) this.setStatus({ state: "offline", retryAt: Date.now() + wait });
    await this.waitForWake(this.online ? wait : null);
  }

  /** Whether ordinary requests succeed while the stream is blocked by a proxy, refused by a status, or cannot be opened. */
  private async isOnlyStreamBlocked(error: unknown): Promise<boolean> {
    if (!(error instanceof StreamBlocked || error instanceof ApiError)) return false;
    const hasEnded = error instanceof ApiError && error.status === 0 && this.status.state === "live" && this.failures === 0;
    return !hasEnded && (await this.api.isReachable()); // a stream that has delivered events and ends is opened again
  }

  private async waitOffline(): Promise<void> {
    this.wasLost = true;
    this.setStatus({ state: "offline", retryAt: null });
    while (!this.online && this.subscribers.size > 0) await this.waitForWake(null);
  }

  private async poll(handlers: UpdateHandlers, signal: AbortSignal): Promise<void> {
    this.pollSchedule = newSchedule(Date.now());
    while (!signal.aborted && this.subscribers.size > 0 && this.shouldPoll()) {
      const found = await pollOnce(this.api, this.cursors, handlers);
      this.pollSchedule = afterPoll(this.pollSchedule, found, Date.now());
      const visible = [...this.subscribers].some((subscriber) => subscriber.visible);
      const wait = nextPollDelay(this.pollSchedule, visible, Date.now());
      this.setStatus({ state: wait === "idle" ? "paused" : "polling" });
      await this.waitForWake(typeof wait === "number" ? wait : null);
    }
  }

  private waitForWake(ms: number | null): Promise<void> {
    return new Promise((resolve) => {
      const timer = ms === null ? null : setTimeout(() => this.wake(), ms);
      this.wakeUp = () => {
        if (timer !== null) clearTimeout(timer);
        this.wakeUp = null;
        resolve();
      };
    });
  }

  private wake(): void {
    this.wakeUp?.();
  }

  private interrupt(): void {
    this.request?.abort();
    this.wake();
  }

  private setStatus(status: ConnectionStatus): void {
    if (status.state === this.status.state && status.state !== "offline") return;
    this.status = status;
    this.broadcast({ kind: "status", status, shared: this.shared });
  }

  // --- subscriptions

  private scheduleUpdate(): void {
    this.updateTimer ??= setTimeout(() => {
      this.updateTimer = null;
      const wanted = this.wantedCursors();
      const isNew = [...wanted].some(([id, since]) => (this.cursors.get(id) ?? Number.POSITIVE_INFINITY) > since);
      // A few sessions without a tab are left in place: dropping them costs a new request.
      if (isNew || wanted.size + UNUSED_SESSIONS_MAX < this.cursors.size) {
        this.cursors = wanted;
        this.interrupt();
      }
      if (!this.running && this.subscribers.size > 0) void this.run();
    }, UPDATE_DELAY_MS);
  }

  /**
   * The lowest cursor of each session over all tabs. If there are more sessions than one stream takes, the session that a
   * tab shows (the first of its subscription) comes before its subagents, and recent tabs come before older ones.
   */
  private wantedCursors(): Map<string, number> {
    const wanted = new Map<string, number>();
    const subscriptions = [...this.subscribers].reverse().map((subscriber) => [...subscriber.cursors]);
    for (const [id, since] of [...subscriptions.flatMap((one) => one.slice(0, 1)), ...subscriptions.flatMap((one) => one.slice(1))]) {
      const known = wanted.get(id);
      if (known !== undefined || wanted.size < SESSIONS_MAX) wanted.set(id, Math.min(known ?? since, since));
    }
    return wanted;
  }

  /**
   * Handlers for one request, which do nothing once it is aborted. Data of an aborted request may still arrive, and would
   * move the cursors of the request that replaced it.
   */
  private handlersFor(signal: AbortSignal): UpdateHandlers {
    const guard = <A extends unknown[]>(handler: (...args: A) => void) => (...args: A): void => {
      if (!signal.aborted) handler(...args);
    };
    return {
      onData: guard(() => this.onData()),
      onEvents: guard((session, events) => this.deliverEvents(session, events)),
      onEnded: guard((session, reason) => this.endSession(session, reason)),
      onReset: guard((session) => this.resetSession(session)),
      onSessions: guard((sessions) => this.setSessions(sessions)),
      onSessionsChanged: guard((changed, removed) => this.changeSessions(changed, removed)),
    };
  }

  private setSessions(sessions: SessionSummary[]): void {
    this.sessions = new Map(sessions.map((one) => [one.session_id, one]));
    this.broadcast({ kind: "sessions", sessions });
  }

  private changeSessions(changed: SessionSummary[], removed: string[]): void {
    for (const one of changed) this.sessions?.set(one.session_id, one);
    for (const id of removed) this.sessions?.delete(id);
    this.broadcast({ kind: "sessions_changed", changed, removed });
  }

  private onData(): void {
    if (this.wasLost) this.broadcast({ kind: "reconnected" });
    this.wasLost = false;
    this.failures = 0;
    if (this.isPolling) return;
    this.blockedStreams = 0;
    this.setStatus({ state: "live" });
  }

  private deliverEvents(session: string, events: SessionEvent[]): void {
    const last = events.at(-1)?.seq ?? 0;
    this.cursors.set(session, Math.max(last, this.cursors.get(session) ?? 0));
    for (const subscriber of this.subscribers) {
      const since = subscriber.cursors.get(session);
      if (since === undefined || last <= since) continue;
      subscriber.cursors.set(session, last);
      subscriber.send({ kind: "events", session, events: events.filter((event) => event.seq > since) });
    }
  }

  private endSession(session: string, reason: string): void {
    this.cursors.delete(session);
    for (const subscriber of this.subscribers) {
      if (subscriber.cursors.delete(session)) subscriber.send({ kind: "ended", session, reason });
    }
  }

  private resetSession(session: string): void {
    this.cursors.set(session, 0);
    for (const subscriber of this.subscribers) {
      if (!subscriber.cursors.has(session)) continue;
      subscriber.cursors.set(session, 0);
      subscriber.send({ kind: "reset", session });
    }
  }

  private broadcast(message: Parameters<SendToTab>[0]): void {
    for (const subscriber of this.subscribers) subscriber.send(message);
  }
}

/** Exponential backoff with jitter (`random` in 0..1), so that browsers do not all reconnect at the same moment. */
export function reconnectDelay(failures: number, random: number): number {
  const wait = Math.min(RECONNECT_FIRST_MS * 2 ** Math.max(0, failures - 1), RECONNECT_MAX_MS);
  return wait * (0.75 + 0.5 * random);
}

/** One shared connection per server and token: tabs with the same token share one. */
export class ConnectionPool {
  private readonly connections = new Map<string, SharedConnection>();

  constructor(private readonly shared: boolean) {}

  /** Add a tab and return the handler of its messages. `onTabClosed` calls `leave` when the tab is gone. */
  addTab(send: SendToTab, onTabClosed?: (tab: string, leave: () => void) => void): (message: FromTab) => void {
    const subscriber: Subscriber = { send, cursors: new Map(), visible: true };
    let connection: SharedConnection | null = null;
    const leave = (): void => {
      connection?.removeSubscriber(subscriber);
      connection = null;
    };
    return (message) => {
      if (message.kind === "connect") {
        leave();
        subscriber.visible = message.visible;
        connection = this.connectionFor(message.base, message.token);
        connection.addSubscriber(subscriber);
        onTabClosed?.(message.tab, leave);
      } else if (connection !== null) handleMessage(connection, subscriber, message, leave);
    };
  }

  private connectionFor(base: string, token: string | null): SharedConnection {
    const key = JSON.stringify([base, token]);
    const connection = this.connections.get(key) ?? new SharedConnection(base, token, this.shared);
    this.connections.set(key, connection);
    return connection;
  }
}

function handleMessage(connection: SharedConnection, subscriber: Subscriber, message: FromTab, leave: () => void): void {
  switch (message.kind) {
    case "subscribe": return connection.subscribe(subscriber, message.sessions);
    case "visible": return connection.setVisible(subscriber, message.visible);
    case "activity": return connection.expectUpdates();
    case "online": return connection.setOnline(message.online);
    case "may_stream": return connection.setMayStream(message.allowed);
    case "disconnect": return leave();
    case "connect": return;
  }
}
