// One conversation that is open: its log as it comes, and what it amounts to.
import type { Event } from "../api/shapes";
import { fold } from "../fold/session";
import { EMPTY, type Session } from "../fold/state";
import { Cell } from "./cell";

const EVERY_MS = 110; // text that grows more often than that costs the browser a lot and the eye sees no difference
const HIDDEN_EVERY_MS = 300; // how often a tab that nobody sees looks at what has come
const RAW_MAX = 50_000; // events kept for the list of raw events

export type Standing = "loading" | "open" | "new" | "unknown" | "deleted";

export class Conversation {
  readonly session = new Cell<Session>(EMPTY);
  readonly standing = new Cell<Standing>("loading");
  /** Grows in place; the session's cell tells when. */
  readonly log: Event[] = [];
  private waiting: Event[] = [];
  private due = false;
  private last = 0;

  constructor(
    readonly id: string,
    private readonly folded: (conversation: Conversation) => void,
  ) {}

  get cursor(): number {
    return this.waiting.at(-1)?.seq ?? this.session.get().cursor;
  }

  /** Events are taken in nine times a second at most, however many pieces they come in. */
  take(events: readonly Event[]): void {
    for (const event of events) this.waiting.push(event);
    if (this.due) return;
    this.due = true;
    const wait = this.last + EVERY_MS - performance.now();
    if (wait > 0) setTimeout(() => this.schedule(), wait);
    else this.schedule();
  }

  /** With the next frame; a tab that is hidden, or becomes so, gets none, and goes by the clock. */
  private schedule(): void {
    const timer = setTimeout(() => this.takeIn(), HIDDEN_EVERY_MS);
    requestAnimationFrame(() => {
      clearTimeout(timer);
      this.takeIn();
    });
  }

  restart(): void {
    this.waiting = [];
    this.log.length = 0;
    this.session.set(EMPTY);
  }

  private takeIn(): void {
    if (!this.due) return;
    this.due = false;
    this.last = performance.now();
    const events = this.waiting;
    this.waiting = [];
    const before = this.session.get();
    const after = fold(before, events);
    for (const event of events) if (event.seq > before.cursor) this.log.push(event);
    if (this.log.length > RAW_MAX) this.log.splice(0, this.log.length - RAW_MAX);
    this.standing.set("open");
    this.session.set(after);
    this.folded(this);
  }
}
