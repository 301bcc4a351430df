// The client of the session API: one method per route that the page uses.
import { ApiError } from "./errors";
import type {
  AcceptedMessage, AgentList, Approval, ApprovalList, Budget, EventPage, DeadLetterList, CurrentUser, FileInfo, FilePage, OutboxItem, OutboxList, ScenarioList, Schedule, ScheduleList, SessionCounts, SessionList,
  CreatedSession, SessionDetails, SessionState, SessionUsage, ToolResult, ToolList, ToolsStatus, UsageReport,
} from "./types";

const REQUEST_TIMEOUT_MS = 90_000; // longer than any wait that the server allows
const PROBE_TIMEOUT_MS = 8_000;
const DOWNLOAD_TIMEOUT_MS = 300_000; // 8 MB over a slow connection

export interface NewMessage {
  sessionId: string;
  text: string;
  clientMessageId: string;
  /** The ids of uploaded files. */
  attachments?: readonly string[];
}

/** Exactly one of `in`, `at` and `cron` says when. With the same id, a repeat creates nothing. */
export interface NewSchedule {
  session_id: string;
  text: string;
  schedule_id: string;
  in?: string;
  at?: string;
  cron?: string;
  timezone?: string;
}

export interface SessionQuery {
  q?: string;
  state?: SessionState | null;
  /** `next` of the page before. */
  before?: string | null;
}

export const SESSIONS_PAGE = 100; // also the number of sessions that the server keeps up to date on a stream

export class ApiClient {
  constructor(
    readonly base: string,
    readonly token: string | null,
  ) {}

  agents = (): Promise<AgentList> => this.get("api/agents");
  scenarios = (): Promise<ScenarioList> => this.get("api/scenarios");
  tools = (): Promise<ToolList> => this.get("api/tools/list");
  toolsStatus = (): Promise<ToolsStatus> => this.get("api/tools/config/status");
  sessions = ({ q, state, before }: SessionQuery = {}): Promise<SessionList> =>
    this.get(`api/sdk/sessions?${new URLSearchParams({ limit: String(SESSIONS_PAGE), ...(q && { q }), ...(state && { state }), ...(before && { before }) })}`);
  sessionCounts = (): Promise<SessionCounts> => this.get("api/sdk/sessions/counts");
  session = (id: string): Promise<SessionDetails> => this.get(sessionPath(id));
  events = (id: string, since: number, limit: number): Promise<EventPage> =>
    this.get(`${sessionPath(id)}/events?since=${since}&limit=${limit}`);
  usage = (id: string): Promise<SessionUsage> => this.get(`${sessionPath(id)}/usage`);
  deadLetters = (): Promise<DeadLetterList> => this.get("api/dead");
  outbox = (): Promise<OutboxList> => this.get("api/outbox");
  usageReport = (by: string): Promise<UsageReport> => this.get(`api/usage?${new URLSearchParams({ by })}`);
  raiseBudget = (budget: string, name: string, limits: Readonly<Record<string, number>>): Promise<Budget> => this.call("PUT", "api/budgets", { budget, name, ...limits });
  currentUser = (): Promise<CurrentUser> => this.get("api/me");
  approvals = (id: string): Promise<ApprovalList> => this.get(`${sessionPath(id)}/approvals`);

  createSession = (id: string, agent: string | null): Promise<CreatedSession> =>
    this.post("api/sdk/session/create", { session_id: id, ...(agent !== null && { agent_name: agent }) });
  sendMessage = ({ sessionId, text, clientMessageId, attachments = [] }: NewMessage, whenBusy: "queue" | "interrupt" = "queue"): Promise<AcceptedMessage> =>
    this.post("api/sdk/session/message", {
      session_id: sessionId, user_input: text, client_message_id: clientMessageId, wait: false, ...(whenBusy !== "queue" && { when_busy: whenBusy }),
      ...(attachments.length > 0 && { attachments }),
    });
  regenerate = (id: string, clientMessageId: string): Promise<AcceptedMessage> =>
    this.post(`${sessionPath(id)}/regenerate`, { client_message_id: clientMessageId });
  edit = (messageId: string, { sessionId, text, clientMessageId }: NewMessage): Promise<AcceptedMessage> =>
    this.post(`${sessionPath(sessionId)}/edit`, { message_id: messageId, text, client_message_id: clientMessageId });
  steer = ({ sessionId, text, clientMessageId }: NewMessage): Promise<unknown> =>
    this.post(`${sessionPath(sessionId)}/steer`, { text, client_message_id: clientMessageId });
  stop = (id: string, mode: "now" | "after_turn"): Promise<unknown> => this.post(`${sessionPath(id)}/stop`, { mode });
  retry = (id: string, messageId: string): Promise<unknown> => this.post(`${sessionPath(id)}/retry`, { message_id: messageId });
  decide = (id: string, callId: string, decision: "approve" | "reject", reason?: string): Promise<Approval> =>
    this.post(`${sessionPath(id)}/approvals/${pathPart(callId)}`, { decision, ...(reason && { reason }) });
  renameSession = (id: string, title: string): Promise<unknown> => this.call("PATCH", sessionPath(id), { title });
  deleteSession = (id: string): Promise<unknown> => this.call("DELETE", sessionPath(id));
  setActiveAgent = (id: string, agent: string): Promise<unknown> =>
    this.post("api/sdk/session/set_active_agent", { session_id: id, agent_name: agent });
  runTool = (id: string, tool: string, args: Record<string, unknown>): Promise<ToolResult> =>
    this.post("api/tools/execute", { session_id: id, tool, args });
  retryDeadLetter = (agent: string, seq: number): Promise<unknown> => this.post(`${deadLetterPath(agent, seq)}/retry`, {});
  dropDeadLetter = (agent: string, seq: number): Promise<unknown> => this.call("DELETE", deadLetterPath(agent, seq));
  retryOutboxItem = (item: OutboxItem): Promise<unknown> => this.post(`${outboxItemPath(item)}/retry`, {});
  dropOutboxItem = (item: OutboxItem): Promise<unknown> => this.call("DELETE", outboxItemPath(item));

  /** A file that an event shows, for saving; the page never opens it. */
  downloadFile = async (id: string, sha256: string, seq: number): Promise<Blob> => {
    const response = await this.fetch(`${sessionPath(id)}/files/${sha256}?seq=${seq}`, { signal: AbortSignal.timeout(DOWNLOAD_TIMEOUT_MS) });
    if (!response.ok) throw await ApiError.fromResponse(response);
    return response.blob();
  };

  schedules = (): Promise<ScheduleList> => this.get("api/schedules?limit=100");
  createSchedule = (schedule: NewSchedule): Promise<Schedule> => this.post("api/schedules", schedule);
  changeSchedule = (id: string, change: "pause" | "resume" | "run"): Promise<unknown> => this.post(`${schedulePath(id)}/${change}`, {});
  deleteSchedule = (id: string): Promise<unknown> => this.call("DELETE", schedulePath(id));

  fileLimits = (): Promise<FilePage> => this.get("api/files?limit=1");
  deleteFile = (id: string): Promise<unknown> => this.call("DELETE", filePath(id));

  /** The content of an uploaded file. */
  fileContent = async (id: string): Promise<Blob> => {
    const response = await this.fetch(`${filePath(id)}/content`, { signal: AbortSignal.timeout(DOWNLOAD_TIMEOUT_MS) });
    if (!response.ok) throw await ApiError.fromResponse(response);
    return response.blob();
  };

  /** Upload a file. `fetch` cannot tell how much was sent, so this is an XMLHttpRequest. */
  uploadFile = (file: Blob, name: string, onProgress: (part: number) => void, signal: AbortSignal): Promise<FileInfo> =>
    new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      request.open("POST", `${this.base}api/files?${new URLSearchParams({ name })}`);
      if (this.token) request.setRequestHeader("Authorization", `Bearer ${this.token}`);
      request.setRequestHeader("Content-Type", "application/octet-stream"); // the server finds the type from the content
      request.upload.onprogress = ({ loaded, total }) => onProgress(total === 0 ? 0 : loaded / total);
      request.onerror = () => reject(new ApiError(0, "unreachable", "The connection was lost during the upload."));
      request.onabort = () => reject(new DOMException("the upload was cancelled", "AbortError"));
      request.onload = () => {
        const headers = { "Content-Type": request.getResponseHeader("Content-Type") ?? "" };
        const response = new Response(request.responseText, { status: request.status, headers });
        if (response.ok) readJson(response).then((found) => resolve(found as FileInfo), reject);
        else ApiError.fromResponse(response).then(reject, reject);
      };
      signal.addEventListener("abort", () => request.abort());
      request.send(file);
    });

  /** The HTML of the page that the server serves now. */
  pageHtml = async (): Promise<string> => {
    const response = await this.fetch("", { signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS) });
    if (!response.ok) throw await ApiError.fromResponse(response);
    return response.text();
  };

  /** The routes of this server. The page hides features whose route is missing. */
  routePaths = async (): Promise<ReadonlySet<string>> => {
    const document = await this.get<{ paths?: Record<string, unknown> }>("openapi.json");
    return new Set(Object.keys(document.paths ?? {}));
  };

  get = <T>(path: string): Promise<T> => this.call("GET", path);
  post = <T>(path: string, body: unknown): Promise<T> => this.call("POST", path, body);

  async call<T>(method: string, path: string, body?: unknown): Promise<T> {
    const response = await this.fetch(path, {
      method,
      ...(body !== undefined && { body: JSON.stringify(body) }),
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS),
    });
    if (!response.ok) throw await ApiError.fromResponse(response);
    return (response.status === 204 ? undefined : await readJson(response)) as T;
  }

  /** Whether the server answers ordinary requests, within a few seconds. */
  async isReachable(): Promise<boolean> {
    try {
      const response = await this.fetch("api/sdk/sessions?limit=1", { signal: AbortSignal.timeout(PROBE_TIMEOUT_MS) });
      if (!response.ok) return false;
      await readJson(response);
      return true;
    } catch (error) {
      if (error instanceof ApiError) return false;
      throw error;
    }
  }

  async fetch(path: string, init: RequestInit): Promise<Response> {
    const headers = new Headers(init.headers);
    if (this.token) headers.set("Authorization", `Bearer ${this.token}`);
    try {
      return await fetch(this.base + path, { ...init, headers, cache: "no-store" });
    } catch (error) {
      if (error instanceof TypeError || isTimeout(error)) throw new ApiError(0, "unreachable", String(error));
      throw error;
    }
  }
}

/** The body as JSON. A proxy may answer in place of the server with a page of its own. */
async function readJson(response: Response): Promise<unknown> {
  try {
    return await response.json();
  } catch (error) {
    if (error instanceof SyntaxError || error instanceof TypeError || isTimeout(error)) throw new ApiError(0, "not_json", "The answer is not from the server.");
    throw error;
  }
}

function isTimeout(error: unknown): boolean {
  return error instanceof DOMException && error.name === "TimeoutError";
}

/** One part of a path. Browsers remove "." and ".." from paths, also when they are encoded. */
function pathPart(id: string): string {
  if (id === "." || id === "..") throw new ApiError(422, "bad_address", `"${id}" cannot be used as an id`);
  return encodeURIComponent(id);
}

function sessionPath(sessionId: string): string {
  return `api/sdk/session/${pathPart(sessionId)}`;
}

function schedulePath(id: string): string {
  return `api/schedules/${pathPart(id)}`;
}

function filePath(fileId: string): string {
  return `api/files/${pathPart(fileId)}`;
}

function outboxItemPath(item: OutboxItem): string {
  return `api/outbox/${pathPart(item.connector)}/${pathPart(item.id)}`;
}

function deadLetterPath(agent: string, seq: number): string {
  return `api/dead/${pathPart(agent)}/${seq}`;
}
