// The state of the page: token, connection, team, and the open conversations.
import { ApiClient, type SessionQuery } from "../api/client";
import { ApiError } from "../api/errors";
import type { Agent, SessionSummary, Tool } from "../api/types";
import { EMPTY_SESSION } from "../fold/state";
import type { ConnectionStatus, ToTab } from "../transport/protocol";
import { connectTab, type TabConnection } from "../transport/tabConnection";
import { Conversation } from "./conversation";
import { newId } from "./ids";
import { Observable } from "./observable";
import { isOutdated, loadedScript } from "./pageVersion";
import { apiBaseUrl, currentRoute, extractToken, navigate, parseRoute } from "./route";
import { MessageSender, type SendMode } from "./sender";
import { mergeSessions } from "./sessions";
import { localStore, tabStore } from "./storage";
import { SubagentConversations } from "./subagents";
import { Uploads } from "./uploads";

const OPEN_CONVERSATIONS_MAX = 4; // kept in memory, so that going back to one is immediate

export interface Team {
  agents: readonly Agent[];
  tools: readonly Tool[];
  rootAgent: string | null;
  /** Agents that only route messages to others. */
  supervisors: ReadonlySet<string>;
  /** The kind of model; `demo` and `echo` are scripted. */
  modelKind: string;
}

export class App {
  readonly connectionStatus = new Observable<ConnectionStatus>({ state: "connecting" });
  readonly sessions = new Observable<ReadonlyMap<string, SessionSummary> | null>(null);
  readonly team = new Observable<Team | null>(null);
  readonly isAdmin = new Observable(false);
  /** The routes of the server; null until they are known. */
  readonly routes = new Observable<ReadonlySet<string> | null>(null);
  readonly needsToken = new Observable(false);
  /** Whether the server serves a newer version of the page. */
  readonly outdated = new Observable(false);
  readonly current = new Observable<Conversation | null>(null);
  /** Conversations that were deleted while the page was open; older search results may still contain them. */
  readonly deletedIds = new Set<string>();
  readonly sender: MessageSender;
  readonly uploads: Uploads;
  api: ApiClient;
  private connection: TabConnection | null = null;
  private readonly openConversations = new Map<string, Conversation>();
  private readonly subagents = new SubagentConversations();

  constructor(private readonly base: string) {
    this.api = new ApiClient(base, localStore.get("token"));
    this.uploads = new Uploads(() => this.api);
    this.sender = new MessageSender(
      () => this.api,
      (one) => this.onMessageAccepted(one.sessionId),
    );
  }

  static start(): App {
    const app = new App(apiBaseUrl(location));
    currentRoute.subscribe(() => app.showConversation(currentRoute.get().conversationId));
    app.applyLocation();
    window.addEventListener("hashchange", () => app.applyLocation());
    window.addEventListener("online", () => app.sender.resume());
    window.addEventListener("pageshow", ({ persisted }) => persisted && app.connect());
    app.connect();
    app.sender.resume();
    return app;
  }

  // --- token and location

  setToken(token: string): void {
    localStore.set("token", token);
    this.api = new ApiClient(this.base, token);
    this.showConversation(currentRoute.get().conversationId); // signing out has closed it
    this.connect();
    this.sender.resume();
  }

  signOut(): void {
    // What was not sent belongs to this user. The next one must neither see it nor send it.
    this.uploads.clear();
    this.sender.clear();
    tabStore.clear();
    localStore.set("token", null);
    this.api = new ApiClient(this.base, null);
    this.connection?.close();
    this.connection = null;
    this.sessions.set(null);
    this.team.set(null);
    this.openConversations.clear();
    this.current.set(null);
    this.needsToken.set(true);
  }

  private applyLocation(): void {
    const { token, rest } = extractToken(location.hash);
    if (token !== null) {
      history.replaceState(null, "", location.pathname + location.search + rest);
      this.setToken(token);
    }
    currentRoute.set(parseRoute(location.hash));
  }

  // --- the connection

  connect(): void {
    this.connection?.close();
    this.needsToken.set(false);
    const api = this.api;
    this.connection = connectTab(this.base, api.token, (message) => {
      if (this.api === api) this.handleMessage(message); // messages of an earlier token are ignored
    });
    this.updateSubscription();
    void this.loadTeam();
  }

  /** Tell the connection that the user did something, so that it polls faster for a while. */
  expectUpdates(): void {
    this.connection?.send({ kind: "activity" });
  }

  private updateSubscription(): void {
    const shown = this.current.get();
    const own = shown === null || shown.status.get() === "new" ? {} : { [shown.id]: shown.cursor };
    const sessions = { ...own, ...this.subagents.cursors() };
    this.connection?.send({ kind: "subscribe", sessions });
  }

  private handleMessage(message: ToTab): void {
    switch (message.kind) {
      case "status": return this.setConnectionStatus(message.status);
      case "reconnected": return this.onReconnected();
      case "sessions": return this.sessions.update((known) => mergeSessions(known, message.sessions));
      case "sessions_changed": return this.updateSessions(message.changed, message.removed);
      case "events": return this.findConversation(message.session)?.addEvents(message.events);
      case "reset": return this.findConversation(message.session)?.reset();
      case "ended": return this.onConversationEnded(message.session, message.reason);
    }
  }

  private setConnectionStatus(status: ConnectionStatus): void {
    this.connectionStatus.set(status);
    if (status.state === "unauthorized") this.needsToken.set(true);
  }

  private onReconnected(): void {
    this.sender.resume();
    void this.loadTeam();
    void this.checkForNewPage();
  }

  /** Called after a reconnect, and when a part of the page could not be loaded: the server may have been upgraded. */
  async checkForNewPage(): Promise<void> {
    try {
      if (isOutdated(await this.api.pageHtml(), loadedScript())) this.outdated.set(true);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error; // otherwise checked again after the next reconnect
    }
  }

  private updateSessions(changed: readonly SessionSummary[], removed: readonly string[]): void {
    const sessions = new Map(this.sessions.get() ?? []);
    for (const one of changed) sessions.set(one.session_id, one);
    for (const id of removed) {
      sessions.delete(id);
      this.deletedIds.add(id);
    }
    this.sessions.set(sessions);
  }

  /** Load one page of the list, and return the cursor of the next one. */
  async loadSessions(query: SessionQuery): Promise<string | null> {
    const { sessions, next } = await this.api.sessions(query);
    const known = new Map(this.sessions.get() ?? []);
    // What the stream has sent is newer than this page.
    for (const one of sessions) if (!known.has(one.session_id) && !this.deletedIds.has(one.session_id)) known.set(one.session_id, one);
    this.sessions.set(known);
    return next;
  }

  async deleteSession(id: string): Promise<void> {
    await this.api.deleteSession(id);
    this.updateSessions([], [id]);
  }

  private onConversationEnded(id: string, reason: string): void {
    const conversation = this.findConversation(id);
    const sending = this.sender.pending.get().some((one) => one.sessionId === id);
    conversation?.status.set(reason === "deleted" ? "deleted" : sending ? "new" : "unknown");
  }

  /** Load the agents and tools, and what this server and this token allow. */
  async loadTeam(): Promise<void> {
    const api = this.api; // responses that belong to an earlier token are ignored below
    try {
      const [{ agents }, { tools }, { scenarios, default: defaultId }, { model_kind: modelKind }] = await Promise.all([
        api.agents(), api.tools(), api.scenarios(), api.toolsStatus(),
      ]);
      if (this.api !== api) return;
      const rootAgent = scenarios.find((one) => one.id === defaultId)?.root ?? agents[0]?.name ?? null;
      const supervisors = new Set(scenarios.flatMap((one) => one.supervisor ?? []));
      this.team.set({ agents, tools, rootAgent, supervisors, modelKind });
      this.routes.set(await this.api.routePaths());
      this.isAdmin.set((await this.api.currentUser()).scopes.includes("admin"));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 401 && this.api === api) this.needsToken.set(true);
    }
  }

  // --- conversations

  private showConversation(id: string | null): void {
    if (id === (this.current.get()?.id ?? null)) return;
    const shown = id === null ? null : this.openConversation(id);
    this.current.set(shown);
    this.subagents.sync(shown?.session.get() ?? EMPTY_SESSION, (child) => this.openConversations.get(child));
    this.updateSubscription();
  }

  /** An open conversation, or one of a subagent of the shown conversation. */
  findConversation(id: string): Conversation | undefined {
    return this.openConversations.get(id) ?? this.subagents.get(id);
  }

  private onFolded(conversation: Conversation): void {
    const session = conversation.session.get();
    this.sender.confirm(session.clientIds);
    if (conversation === this.current.get() && this.subagents.sync(session, (child) => this.openConversations.get(child))) this.updateSubscription();
  }

  private openConversation(id: string): Conversation {
    const known = this.openConversations.get(id);
    const conversation = known ?? new Conversation(id, (one) => this.onFolded(one));
    this.openConversations.delete(id); // and set again: the map's order is that of use
    this.openConversations.set(id, conversation);
    if (known === undefined && this.sender.pending.get().some((one) => one.sessionId === id)) conversation.status.set("new");
    for (const old of [...this.openConversations.keys()].slice(0, -OPEN_CONVERSATIONS_MAX)) this.openConversations.delete(old);
    return conversation;
  }

  /** The server has accepted a message: a new conversation now exists there and can be followed. */
  private onMessageAccepted(id: string): void {
    const conversation = this.openConversations.get(id);
    if (conversation?.status.get() === "new") {
      conversation.status.set("loading");
      this.updateSubscription();
    }
    this.expectUpdates();
  }

  /** Send a message with its files to the current conversation, or start a new one with it. */
  send(text: string, how: SendMode, agent: string | null): void {
    const current = this.current.get();
    const sessionId = current?.id ?? `c-${newId(8)}`;
    const attachments = how !== "steer" ? this.uploads.take(current?.id ?? "") : [];
    this.sender.add({ sessionId, text, how, agent: current === null ? (agent ?? "") : null, ...(attachments.length > 0 && { attachments }) });
    if (current === null) navigate(sessionId);
  }
}
