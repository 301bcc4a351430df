// The stream of server-sent events: opening it with cursors, noticing that it is dead, parsing it.
import type { ApiClient } from "../api/client";
import { ApiError } from "../api/errors";
import type { SessionEvent, SessionSummary } from "../api/types";

export const SILENCE_TIMEOUT_MS = 40_000; // the server sends a heartbeat every 15 s
export const FIRST_DATA_TIMEOUT_MS = 8_000; // without data for that long, a proxy is buffering the stream

/** Called with what a stream or a poll has received. */
export interface UpdateHandlers {
  onEvents: (session: string, events: SessionEvent[]) => void;
  onEnded: (session: string, reason: string) => void;
  onReset: (session: string) => void;
  onSessions: (sessions: SessionSummary[]) => void;
  onSessionsChanged: (changed: SessionSummary[], removed: string[]) => void;
  /** Called after every batch: the server can be reached. */
  onData: () => void;
}

/** Session id → the last seq received. */
export type Cursors = ReadonlyMap<string, number>;

/** The stream opened and delivered no events: a proxy between server and browser blocks streams. */
export class StreamBlocked extends Error {}

/** A proxy may answer in place of the server, for example with a page that asks for a sign-in. */
function isEventStream(response: Response): boolean {
  return response.headers.get("Content-Type")?.startsWith("text/event-stream") ?? false;
}

/** Read the stream until it fails or `signal` aborts. Always ends by throwing. */
export async function followStream(api: ApiClient, cursors: Cursors, handlers: UpdateHandlers, signal: AbortSignal): Promise<void> {
  const query = [...cursors].map(([id, since]) => `session=${encodeURIComponent(cursorParam(id, since))}`);
  const silence = new SilenceTimer(signal);
  try {
    const response = await api.fetch(`api/stream?${query.join("&")}`, {
      headers: { Accept: "text/event-stream" },
      signal: silence.signal,
    });
    if (!response.ok) throw await ApiError.fromResponse(response);
    if (response.body === null || !isEventStream(response)) throw new StreamBlocked("the answer is not a stream of events");
    await readFrames(response.body, handlers, silence);
  } catch (error) {
    if (silence.expired) throw silence.hasData ? new ApiError(0, "silent", "the server stopped sending") : new StreamBlocked("the stream delivered no data");
    throw error instanceof TypeError ? new ApiError(0, "broken", "the connection broke") : error;
  } finally {
    silence.stop();
  }
}

/** Without a number the server starts at the oldest event that it keeps, so such a cursor is never out of range. */
function cursorParam(id: string, since: number): string {
  return since > 0 ? `${encodeURIComponent(id)}:${since}` : encodeURIComponent(id);
}

async function readFrames(body: ReadableStream<Uint8Array>, handlers: UpdateHandlers, silence: SilenceTimer): Promise<void> {
  const parser = new SseParser();
  const decoder = new TextDecoder();
  const reader = body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw silence.hasData ? new ApiError(0, "ended", "the stream ended") : new StreamBlocked("the stream was empty");
    silence.restart();
    const frames = parser.push(decoder.decode(value, { stream: true }));
    if (frames.length > 0) dispatchFrames(frames, handlers);
  }
}

const CONTROL_EVENTS = new Set(["sessions", "sessions_changed", "end", "gap"]);

/** Call the handlers in the order of the frames; consecutive events of one session are passed on together. */
export function dispatchFrames(frames: readonly SseFrame[], handlers: UpdateHandlers): void {
  let batch: SessionEvent[] = [];
  const flush = (): void => {
    const first = batch[0];
    if (first !== undefined) handlers.onEvents(first.session_id, batch);
    batch = [];
  };
  for (const { event: kind, data } of frames) {
    const content: unknown = JSON.parse(data);
    if (!CONTROL_EVENTS.has(kind)) {
      const event = content as SessionEvent;
      if (batch.length > 0 && batch[0]?.session_id !== event.session_id) flush();
      batch.push(event);
      continue;
    }
    flush();
    dispatchControl(kind, content, handlers);
  }
  flush();
  handlers.onData();
}

function dispatchControl(kind: string, content: unknown, handlers: UpdateHandlers): void {
  if (kind === "sessions") handlers.onSessions((content as { sessions: SessionSummary[] }).sessions);
  if (kind === "sessions_changed") {
    const { changed, removed } = content as { changed: SessionSummary[]; removed: string[] };
    handlers.onSessionsChanged(changed, removed);
  }
  const { session_id: session, reason } = content as { session_id?: string; reason?: string };
  if (kind === "gap" && session) handlers.onReset(session);
  if (kind === "end" && session) handlers.onEnded(session, reason ?? "unknown");
  if (kind === "end" && !session && reason === "revoked") throw new ApiError(401, "unauthorized", "the key was revoked");
}

/** Aborts a stream that delivers nothing for too long; the limit for the first data is shorter. */
class SilenceTimer {
  hasData = false;
  expired = false;
  private readonly control = new AbortController();
  private timer: ReturnType<typeof setTimeout>;
  private readonly onParentAbort: () => void;

  constructor(private readonly parent: AbortSignal) {
    this.onParentAbort = () => this.control.abort(parent.reason);
    parent.addEventListener("abort", this.onParentAbort);
    if (parent.aborted) this.onParentAbort();
    this.timer = setTimeout(() => this.expire(), FIRST_DATA_TIMEOUT_MS);
  }

  get signal(): AbortSignal {
    return this.control.signal;
  }

  restart(): void {
    this.hasData = true;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.expire(), SILENCE_TIMEOUT_MS);
  }

  stop(): void {
    clearTimeout(this.timer);
    this.parent.removeEventListener("abort", this.onParentAbort);
  }

  private expire(): void {
    this.expired = true;
    this.control.abort();
  }
}

export interface SseFrame {
  event: string;
  data: string;
}

/** Takes chunks of text and returns the frames that they complete. Comments and frames without data are skipped. */
export class SseParser {
  private partialLine = "";
  private event = "message";
  private data: string[] = [];

  push(chunk: string): SseFrame[] {
    // A "\r" at the end of a chunk may be the first half of "\r\n": it stays in the partial line.
    const lines = (this.partialLine + chunk).split(/\r\n|\n|\r(?!$)/);
    this.partialLine = lines.pop() ?? "";
    return lines.flatMap((line) => this.parseLine(line));
  }

  private parseLine(line: string): SseFrame[] {
    if (line === "") return this.endFrame();
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") this.event = value;
    if (name === "data") this.data.push(value);
    return [];
  }

  private endFrame(): SseFrame[] {
    const frames = this.data.length > 0 ? [{ event: this.event, data: this.data.join("\n") }] : [];
    this.event = "message";
    this.data = [];
    return frames;
  }
}
