// Where news come from: one stream, or questions asked again and again. Both end by throwing, or when told to.
import type { Api } from "../api/client";
import { Problem } from "../api/problem";
import type { Event, SessionItem } from "../api/shapes";
import { FrameParser, type Frame } from "./sse";

export const SILENCE_MAX_MS = 40_000; // the server's heart beats every 15 s
export const FIRST_WORD_MS = 8_000; // a stream that says nothing for so long is held back by something in between
const PAGE = 1000;

export interface News {
  events: (session: string, events: Event[]) => void;
  over: (session: string, reason: string) => void;
  restart: (session: string) => void;
  sessions: (sessions: SessionItem[]) => void;
  changed: (changed: SessionItem[], removed: string[]) => void;
  /** The first word of the server. */
  heard: () => void;
}

export type Cursors = ReadonlyMap<string, number>;

/** The stream opened, or was opened and closed, without a word: something between does not let streams through. */
export class Held extends Error {}

export async function follow(api: Api, cursors: Cursors, news: News, signal: AbortSignal): Promise<void> {
  const query = [...cursors].map(([id, since]) => `session=${encodeURIComponent(place(id, since))}`);
  const silence = new Silence(signal);
  try {
    const answer = await api.fetch(`api/stream?${query.join("&")}`, {
      headers: { Accept: "text/event-stream" },
      signal: silence.signal,
    });
    if (!answer.ok) throw await Problem.of(answer);
    if (answer.body === null) throw new Held("the stream has no body");
    await read(answer.body, news, silence);
  } catch (error) {
    if (silence.isTooLong) throw silence.heard ? new Problem(0, "silent", "the server went silent") : new Held("no word");
    throw error instanceof TypeError ? new Problem(0, "broken", "the connection broke") : error;
  } finally {
    silence.end();
  }
}

/** Without a number it means all there is, which is never behind what is kept. */
function place(id: string, since: number): string {
  return since > 0 ? `${encodeURIComponent(id)}:${since}` : encodeURIComponent(id);
}

async function read(body: ReadableStream<Uint8Array>, news: News, silence: Silence): Promise<void> {
  const parser = new FrameParser();
  const decoder = new TextDecoder();
  const reader = body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw silence.heard ? new Problem(0, "ended", "the stream ended") : new Held("an empty stream");
    silence.broken();
    const frames = parser.push(decoder.decode(value, { stream: true }));
    if (frames.length > 0) tellFrames(frames, news);
  }
}

/** Frames in their order, events of one session in as few pieces as can be. */
export function tellFrames(frames: readonly Frame[], news: News): void {
  let gathered: Event[] = [];
  const tell = (): void => {
    const first = gathered[0];
    if (first !== undefined) news.events(first.session_id, gathered);
    gathered = [];
  };
  for (const { event: kind, data } of frames) {
    const told: unknown = JSON.parse(data);
    if (isEvent(kind)) {
      const event = told as Event;
      if (gathered.length > 0 && gathered[0]?.session_id !== event.session_id) tell();
      gathered.push(event);
      continue;
    }
    tell();
    tellOther(kind, told, news);
  }
  tell();
  news.heard();
}

const OTHERS = new Set(["sessions", "sessions_changed", "end", "gap"]);

function isEvent(kind: string): boolean {
  return !OTHERS.has(kind);
}

function tellOther(kind: string, told: unknown, news: News): void {
  if (kind === "sessions") news.sessions((told as { sessions: SessionItem[] }).sessions);
  if (kind === "sessions_changed") {
    const { changed, removed } = told as { changed: SessionItem[]; removed: string[] };
    news.changed(changed, removed);
  }
  const { session_id: session, reason } = told as { session_id?: string; reason?: string };
  if (kind === "gap" && session) news.restart(session);
  if (kind === "end" && session) news.over(session, reason ?? "unknown");
  if (kind === "end" && !session && reason === "revoked") throw new Problem(401, "unauthorized", "the key was revoked");
}

/** Gives up on a stream that is silent for too long. */
class Silence {
  heard = false;
  isTooLong = false;
  private readonly control = new AbortController();
  private timer: ReturnType<typeof setTimeout>;
  private readonly outer: () => void;

  constructor(private readonly parent: AbortSignal) {
    this.outer = () => this.control.abort(parent.reason);
    parent.addEventListener("abort", this.outer);
    if (parent.aborted) this.outer();
    this.timer = setTimeout(() => this.tooLong(), FIRST_WORD_MS);
  }

  get signal(): AbortSignal {
    return this.control.signal;
  }

  broken(): void {
    this.heard = true;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.tooLong(), SILENCE_MAX_MS);
  }

  end(): void {
    clearTimeout(this.timer);
    this.parent.removeEventListener("abort", this.outer);
  }

  private tooLong(): void {
    this.isTooLong = true;
    this.control.abort();
  }
}

/** One round of questions: the list, and what is new in each session. Whether anything was. */
export async function ask(api: Api, cursors: Cursors, news: News): Promise<boolean> {
  const { sessions } = await api.sessions("", null);
  news.sessions(sessions);
  const found = await Promise.all([...cursors].map(([id, since]) => askOne(api, id, since, news)));
  news.heard();
  return found.includes(true);
}

async function askOne(api: Api, id: string, since: number, news: News): Promise<boolean> {
  try {
    let after = since;
    for (;;) {
      const page = await api.events(id, after, PAGE);
      if (page.events.length > 0) news.events(id, page.events);
      if (!page.has_more) return page.next_since > since;
      after = page.next_since;
    }
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (error.status === 404) news.over(id, "unknown");
    else if (error.code === "cursor_gone" || error.code === "bad_cursor") news.restart(id);
    else if (error.status === 410) news.over(id, "deleted");
    else throw error;
    return true;
  }
}
