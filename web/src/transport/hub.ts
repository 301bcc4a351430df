// The one connection of a browser: follows what any of its tabs shows, and tells each tab what it asked for.
import { Api } from "../api/client";
import { Problem } from "../api/problem";
import type { Event, SessionItem } from "../api/shapes";
import { asked, burst, nextIn, pace, reconnectIn } from "./pace";
import type { LinkState, Tell } from "./protocol";
import { ask, follow, Held, type News } from "./source";

const SESSIONS_MAX = 50; // of one stream; the server's limit
const HELD_MAX = 2; // streams without a word before questions are asked instead
const STREAM_AGAIN_MS = 120_000; // how long questions are asked before a stream is tried again
const SLACK = 10; // sessions that nobody looks at any more and that are not worth a new request
const SETTLE_MS = 15; // changes that come together make one new request

export interface Member {
  tell: Tell;
  /** Session → the last seq that this tab has. */
  cursors: Map<string, number>;
  visible: boolean;
}

export class Hub {
  private readonly members = new Set<Member>();
  private readonly api: Api;
  private cursors = new Map<string, number>();
  private list: Map<string, SessionItem> | null = null;
  private state: LinkState = { is: "connecting" };
  private connection: AbortController | null = null;
  private settling: ReturnType<typeof setTimeout> | null = null;
  private wakeUp: (() => void) | null = null;
  private failures = 0;
  private lost = false;
  private held = 0;
  private pollingSince = 0;
  private pace = pace(0);
  private online = true;
  private running = false;

  constructor(base: string, token: string | null, private readonly shared: boolean) {
    this.api = new Api(base, token);
  }

  // --- tabs

  join(member: Member): void {
    this.members.add(member);
    member.tell({ kind: "link", state: this.state, shared: this.shared });
    if (this.list !== null) member.tell({ kind: "sessions", sessions: [...this.list.values()] });
    if (this.running) this.hurry();
    this.settle();
  }

  leave(member: Member): void {
    this.members.delete(member);
    this.settle();
    if (this.members.size === 0) this.interrupt();
  }

  follow(member: Member, sessions: Readonly<Record<string, number>>): void {
    member.cursors = new Map(Object.entries(sessions));
    this.settle();
  }

  setVisible(member: Member, visible: boolean): void {
    member.visible = visible;
    if (visible) this.hurry();
  }

  /** News are near, or somebody is there again. */
  hurry(): void {
    this.pace = burst(Date.now());
    if (this.state.is !== "live") this.wake();
  }

  setOnline(online: boolean): void {
    if (online === this.online) return;
    this.online = online;
    if (online) this.wake();
    else this.interrupt();
  }

  // --- the connection

  private async run(): Promise<void> {
    this.running = true;
    while (this.members.size > 0) {
      const connection = (this.connection = new AbortController());
      try {
        const news = this.news(connection.signal);
        await (this.isHeldBack() ? this.poll(news, connection.signal) : follow(this.api, this.cursors, news, connection.signal));
      } catch (error) {
        if (!connection.signal.aborted) await this.failed(error);
        else if (!this.online) await this.waitOffline();
      }
    }
    this.running = false;
  }

  private isHeldBack(): boolean {
    return this.held >= HELD_MAX && Date.now() - this.pollingSince < STREAM_AGAIN_MS;
  }

  private async failed(error: unknown): Promise<void> {
    if (error instanceof Problem && error.status === 401) {
      this.setState({ is: "unauthorized" });
      await this.pause(null);
      return;
    }
    if (!(error instanceof Held || error instanceof Problem)) console.error("the connection failed", error);
    if (error instanceof Held || (await this.isStreamRefused(error))) {
      this.held += 1;
      if (this.held >= HELD_MAX) this.pollingSince = Date.now();
    } else this.held = 0;
    this.failures += 1;
    this.lost = true;
    const wait = reconnectIn(this.failures, Math.random());
    if (this.failures > 1 || !this.online) this.setState({ is: "offline", retryAt: Date.now() + wait });
    await this.pause(this.online ? wait : null);
  }

  /** Whether everything gets through but the stream. */
  private async isStreamRefused(error: unknown): Promise<boolean> {
    if (!(error instanceof Problem) || error.status !== 0 || this.state.is === "live") return false;
    try {
      await this.api.get("health");
      return true;
    } catch (unreachable) {
      if (unreachable instanceof Problem) return false;
      throw unreachable;
    }
  }

  private async waitOffline(): Promise<void> {
    this.lost = true;
    this.setState({ is: "offline", retryAt: null });
    while (!this.online && this.members.size > 0) await this.pause(null);
  }

  private async poll(news: News, signal: AbortSignal): Promise<void> {
    this.pace = pace(Date.now());
    while (!signal.aborted && this.members.size > 0 && this.isHeldBack()) {
      const found = await ask(this.api, this.cursors, news);
      this.pace = asked(this.pace, found, Date.now());
      const visible = [...this.members].some((member) => member.visible);
      const wait = nextIn(this.pace, visible, Date.now());
      this.setState({ is: wait === "idle" ? "paused" : "polling" });
      await this.pause(typeof wait === "number" ? wait : null);
    }
  }

  private pause(ms: number | null): Promise<void> {
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
    this.connection?.abort();
    this.wake();
  }

  private setState(state: LinkState): void {
    if (state.is === this.state.is && state.is !== "offline") return;
    this.state = state;
    this.tellAll({ kind: "link", state, shared: this.shared });
  }

  // --- what is followed

  private settle(): void {
    this.settling ??= setTimeout(() => {
      this.settling = null;
      const wanted = this.wanted();
      const isNew = [...wanted].some(([id, since]) => (this.cursors.get(id) ?? Number.POSITIVE_INFINITY) > since);
      // What nobody looks at any more is left out when the next request is made.
      if (isNew || wanted.size + SLACK < this.cursors.size) {
        this.cursors = wanted;
        this.interrupt();
      }
      if (!this.running && this.members.size > 0) void this.run();
    }, SETTLE_MS);
  }

  /**
   * The oldest cursor that any tab has. When there are too many, what a tab shows, which it names first, comes before
   * what tabs only keep an eye on, and the most recent tabs before others.
   */
  private wanted(): Map<string, number> {
    const wanted = new Map<string, number>();
    const asked = [...this.members].reverse().map((member) => [...member.cursors]);
    for (const [id, since] of [...asked.flatMap((one) => one.slice(0, 1)), ...asked.flatMap((one) => one.slice(1))]) {
      const known = wanted.get(id);
      if (known !== undefined || wanted.size < SESSIONS_MAX) wanted.set(id, Math.min(known ?? since, since));
    }
    return wanted;
  }

  /** What a connection has to say, until it is given up: its last words would be taken for the next one's. */
  private news(signal: AbortSignal): News {
    const unless = <A extends unknown[]>(act: (...given: A) => void) => (...given: A): void => {
      if (!signal.aborted) act(...given);
    };
    return {
      heard: unless(() => this.heard()),
      events: unless((session, events) => this.tellEvents(session, events)),
      over: unless((session, reason) => this.tellOver(session, reason)),
      restart: unless((session) => this.restart(session)),
      sessions: unless((sessions) => this.relist(sessions)),
      changed: unless((changed, removed) => this.tellChanged(changed, removed)),
    };
  }

  private relist(sessions: SessionItem[]): void {
    this.list = new Map(sessions.map((one) => [one.session_id, one]));
    this.tellAll({ kind: "sessions", sessions });
  }

  private tellChanged(changed: SessionItem[], removed: string[]): void {
    for (const one of changed) this.list?.set(one.session_id, one);
    for (const id of removed) this.list?.delete(id);
    this.tellAll({ kind: "changed", changed, removed });
  }

  private heard(): void {
    if (this.lost) this.tellAll({ kind: "back" });
    this.lost = false;
    this.failures = 0;
    if (this.isHeldBack()) return;
    this.held = 0;
    this.setState({ is: "live" });
  }

  private tellEvents(session: string, events: Event[]): void {
    const last = events.at(-1)?.seq ?? 0;
    this.cursors.set(session, Math.max(last, this.cursors.get(session) ?? 0));
    for (const member of this.members) {
      const since = member.cursors.get(session);
      if (since === undefined || last <= since) continue;
      member.cursors.set(session, last);
      member.tell({ kind: "events", session, events: events.filter((event) => event.seq > since) });
    }
  }

  private tellOver(session: string, reason: string): void {
    this.cursors.delete(session);
    for (const member of this.members) {
      if (member.cursors.delete(session)) member.tell({ kind: "over", session, reason });
    }
  }

  private restart(session: string): void {
    this.cursors.set(session, 0);
    for (const member of this.members) {
      if (!member.cursors.has(session)) continue;
      member.cursors.set(session, 0);
      member.tell({ kind: "restart", session });
    }
  }

  private tellAll(message: Parameters<Tell>[0]): void {
    for (const member of this.members) member.tell(message);
  }
}
