// Calls of the API. One per route that the page uses.
import { Problem } from "./problem";
import type {
  Accepted, Agents, Approval, Approvals, EventPage, LetterList, Me, OutboxItem, OutboxList, Scenarios, SessionList,
  SessionMade, SessionShown, SessionUsage, ToolDone, Tools, ToolsStatus,
} from "./shapes";

const CALL_MAX_MS = 90_000; // longer than the server lets anybody wait for an answer
const FILE_MAX_MS = 300_000; // eight megabytes over a thin line

export interface NewMessage {
  sessionId: string;
  text: string;
  clientMessageId: string;
}

export class Api {
  constructor(
    readonly base: string,
    readonly token: string | null,
  ) {}

  agents = (): Promise<Agents> => this.get("api/agents");
  scenarios = (): Promise<Scenarios> => this.get("api/scenarios");
  tools = (): Promise<Tools> => this.get("api/tools/list");
  toolsStatus = (): Promise<ToolsStatus> => this.get("api/tools/config/status");
  sessions = (q: string, before: string | null): Promise<SessionList> =>
    this.get(`api/sdk/sessions?${new URLSearchParams({ limit: "50", ...(q && { q }), ...(before && { before }) })}`);
  session = (id: string): Promise<SessionShown> => this.get(at(id));
  events = (id: string, since: number, limit: number): Promise<EventPage> =>
    this.get(`${at(id)}/events?since=${since}&limit=${limit}`);
  usage = (id: string): Promise<SessionUsage> => this.get(`${at(id)}/usage`);
  letters = (): Promise<LetterList> => this.get("api/dead");
  outbox = (): Promise<OutboxList> => this.get("api/outbox");
  me = (): Promise<Me> => this.get("api/me");
  approvals = (id: string): Promise<Approvals> => this.get(`${at(id)}/approvals`);

  create = (id: string, agent: string | null): Promise<SessionMade> =>
    this.post("api/sdk/session/create", { session_id: id, ...(agent !== null && { agent_name: agent }) });
  say = ({ sessionId, text, clientMessageId }: NewMessage): Promise<Accepted> =>
    this.post("api/sdk/session/message", {
      session_id: sessionId, user_input: text, client_message_id: clientMessageId, wait: false,
    });
  steer = ({ sessionId, text, clientMessageId }: NewMessage): Promise<unknown> =>
    this.post(`${at(sessionId)}/steer`, { text, client_message_id: clientMessageId });
  stop = (id: string, mode: "now" | "after_turn"): Promise<unknown> => this.post(`${at(id)}/stop`, { mode });
  retry = (id: string, messageId: string): Promise<unknown> => this.post(`${at(id)}/retry`, { message_id: messageId });
  decide = (id: string, callId: string, decision: "approve" | "reject", reason?: string): Promise<Approval> =>
    this.post(`${at(id)}/approvals/${encodeURIComponent(callId)}`, { decision, ...(reason && { reason }) });
  rename = (id: string, title: string): Promise<unknown> => this.call("PATCH", at(id), { title });
  remove = (id: string): Promise<unknown> => this.call("DELETE", at(id));
  switchTo = (id: string, agent: string): Promise<unknown> =>
    this.post("api/sdk/session/set_active_agent", { session_id: id, agent_name: agent });
  runTool = (id: string, tool: string, args: Record<string, unknown>): Promise<ToolDone> =>
    this.post("api/tools/execute", { session_id: id, tool, args });
  retryLetter = (agent: string, seq: number): Promise<unknown> => this.post(`${letter(agent, seq)}/retry`, {});
  dropLetter = (agent: string, seq: number): Promise<unknown> => this.call("DELETE", letter(agent, seq));
  retryItem = (item: OutboxItem): Promise<unknown> => this.post(`${outboxItem(item)}/retry`, {});
  dropItem = (item: OutboxItem): Promise<unknown> => this.call("DELETE", outboxItem(item));

  /** A file that an event shows, to be kept: nothing opens it here. */
  file = async (id: string, sha256: string, seq: number): Promise<Blob> => {
    const answer = await this.fetch(`${at(id)}/files/${sha256}?seq=${seq}`, { signal: AbortSignal.timeout(FILE_MAX_MS) });
    if (!answer.ok) throw await Problem.of(answer);
    return answer.blob();
  };

  /** The page as the server hands it out now. */
  index = async (): Promise<string> => {
    const answer = await this.fetch("", { signal: AbortSignal.timeout(CALL_MAX_MS) });
    if (!answer.ok) throw await Problem.of(answer);
    return answer.text();
  };

  /** The routes there are: what the page offers depends on it. */
  routes = async (): Promise<ReadonlySet<string>> => {
    const document = await this.get<{ paths?: Record<string, unknown> }>("openapi.json");
    return new Set(Object.keys(document.paths ?? {}));
  };

  get = <T>(path: string): Promise<T> => this.call("GET", path);
  post = <T>(path: string, body: unknown): Promise<T> => this.call("POST", path, body);

  async call<T>(method: string, path: string, body?: unknown): Promise<T> {
    const answer = await this.fetch(path, {
      method,
      ...(body !== undefined && { body: JSON.stringify(body) }),
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      signal: AbortSignal.timeout(CALL_MAX_MS),
    });
    if (!answer.ok) throw await Problem.of(answer);
    return (answer.status === 204 ? undefined : await answer.json()) as T;
  }

  async fetch(path: string, how: RequestInit): Promise<Response> {
    const headers = new Headers(how.headers);
    if (this.token) headers.set("Authorization", `Bearer ${this.token}`);
    try {
      return await fetch(this.base + path, { ...how, headers, cache: "no-store" });
    } catch (error) {
      if (error instanceof TypeError || isTimeout(error)) throw new Problem(0, "unreachable", String(error));
      throw error;
    }
  }
}

function isTimeout(error: unknown): boolean {
  return error instanceof DOMException && error.name === "TimeoutError";
}

function at(sessionId: string): string {
  return `api/sdk/session/${encodeURIComponent(sessionId)}`;
}

function outboxItem(item: OutboxItem): string {
  return `api/outbox/${encodeURIComponent(item.connector)}/${encodeURIComponent(item.id)}`;
}

function letter(agent: string, seq: number): string {
  return `api/dead/${encodeURIComponent(agent)}/${seq}`;
}
