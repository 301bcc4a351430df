// An open conversation: its events as they arrive, and the state that they fold to.
import type { SessionEvent } from "../api/types";
import { fold } from "../fold/fold";
import { EMPTY_SESSION, type SessionState } from "../fold/state";
import { Observable } from "./observable";

const FOLD_INTERVAL_MS = 110; // drawing growing text more often costs much time and looks the same
const HIDDEN_FOLD_INTERVAL_MS = 300; // in a hidden tab
const RAW_EVENTS_MAX = 50_000; // kept for the Events panel

export type ConversationStatus = "loading" | "open" | "new" | "unknown" | "deleted";

export class Conversation {
  readonly session = new Observable<SessionState>(EMPTY_SESSION);
  readonly status = new Observable<ConversationStatus>("loading");
  /** Grows in place; subscribe to `session` to learn when. */
  readonly rawEvents: SessionEvent[] = [];
  private waiting: SessionEvent[] = [];
  private scheduled = false;
  private lastFoldAt = 0;

  constructor(
    readonly id: string,
    private readonly onFolded: (conversation: Conversation) => void,
  ) {}

  get cursor(): number {
    return this.waiting.at(-1)?.seq ?? this.session.get().cursor;
  }

  /** Events are folded at most nine times a second, however often they arrive. */
  addEvents(events: readonly SessionEvent[]): void {
    for (const event of events) this.waiting.push(event);
    if (this.scheduled) return;
    this.scheduled = true;
    const wait = this.lastFoldAt + FOLD_INTERVAL_MS - performance.now();
    if (wait > 0) setTimeout(() => this.schedule(), wait);
    else this.schedule();
  }

  /** Fold with the next frame. A hidden tab gets no frames, so a timer runs as well. */
  private schedule(): void {
    const timer = setTimeout(() => this.foldWaiting(), HIDDEN_FOLD_INTERVAL_MS);
    requestAnimationFrame(() => {
      clearTimeout(timer);
      this.foldWaiting();
    });
  }

  reset(): void {
    this.waiting = [];
    this.rawEvents.length = 0;
    this.session.set(EMPTY_SESSION);
  }

  private foldWaiting(): void {
    if (!this.scheduled) return;
    this.scheduled = false;
    this.lastFoldAt = performance.now();
    const events = this.waiting;
    this.waiting = [];
    const before = this.session.get();
    const after = fold(before, events);
    for (const event of events) if (event.seq > before.cursor) this.rawEvents.push(event);
    if (this.rawEvents.length > RAW_EVENTS_MAX) this.rawEvents.splice(0, this.rawEvents.length - RAW_EVENTS_MAX);
    this.status.set("open");
    this.session.set(after);
    this.onFolded(this);
  }
}
