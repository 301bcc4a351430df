// The page's state: who asks, the connection, the conversations, what is open.
import { Api } from "../api/client";
import { Problem } from "../api/problem";
import type { Agent, SessionItem, Tool } from "../api/shapes";
import { EMPTY } from "../fold/state";
import { type Link, openLink } from "../transport/link";
import type { FromHub, LinkState } from "../transport/protocol";
import { baseOf, parsePlace, place, takeToken } from "./address";
import { isOutdated, ownScript } from "./build";
import { Cell } from "./cell";
import { Children } from "./children";
import { Conversation } from "./conversation";
import { kept } from "./kept";
import { newId } from "./ids";
import { Sender } from "./sender";

const OPEN_MAX = 4; // conversations that are kept ready after one has gone on to others

export interface Team {
  agents: readonly Agent[];
  tools: readonly Tool[];
  root: string | null;
  /** Those who only route. */
  supervisors: ReadonlySet<string>;
  /** What the models are reached by; `demo` and `echo` say what they are told to. */
  model: string;
}

export class App {
  readonly link = new Cell<LinkState>({ is: "connecting" });
  readonly sessions = new Cell<ReadonlyMap<string, SessionItem> | null>(null);
  readonly team = new Cell<Team | null>(null);
  readonly isAdmin = new Cell(false);
  readonly routes = new Cell<ReadonlySet<string>>(new Set());
  readonly asking = new Cell(false);
  /** The server has another page than this one. */
  readonly outdated = new Cell(false);
  readonly current = new Cell<Conversation | null>(null);
  /** Conversations that were deleted while the page was open: what was found earlier may still name them. */
  readonly gone = new Set<string>();
  readonly sender: Sender;
  api: Api;
  private way: Link | null = null;
  private readonly open = new Map<string, Conversation>();
  private readonly children = new Children();

  constructor(private readonly base: string) {
    this.api = new Api(base, kept.get("token"));
    this.sender = new Sender(
      () => this.api,
      (one) => this.arrived(one.sessionId),
    );
  }

  static start(): App {
    const app = new App(baseOf(location));
    app.takeAddress();
    window.addEventListener("hashchange", () => app.takeAddress());
    window.addEventListener("online", () => app.sender.resume());
    window.addEventListener("pageshow", ({ persisted }) => persisted && app.connect());
    app.connect();
    app.sender.resume();
    return app;
  }

  // --- who asks

  setToken(token: string): void {
    kept.set("token", token);
    this.api = new Api(this.base, token);
    this.connect();
    this.sender.resume();
  }

  forgetToken(): void {
    kept.set("token", null);
    this.api = new Api(this.base, null);
    this.way?.close();
    this.way = null;
    this.sessions.set(null);
    this.team.set(null);
    this.open.clear();
    this.current.set(null);
    this.asking.set(true);
  }

  private takeAddress(): void {
    const { token, rest } = takeToken(location.hash);
    if (token !== null) {
      history.replaceState(null, "", location.pathname + location.search + rest);
      this.setToken(token);
    }
    place.set(parsePlace(location.hash));
    this.show(place.get().conversation);
  }

  // --- the connection

  connect(): void {
    this.way?.close();
    this.asking.set(false);
    const asker = this.api;
    this.way = openLink(this.base, asker.token, (message) => {
      if (this.api === asker) this.heed(message);
    });
    this.refollow();
    void this.learn();
  }

  hurry(): void {
    this.way?.send({ kind: "sent" });
  }

  private refollow(): void {
    const shown = this.current.get();
    const own = shown === null || shown.standing.get() === "new" ? {} : { [shown.id]: shown.cursor };
    const sessions = { ...own, ...this.children.cursors() };
    this.way?.send({ kind: "follow", sessions });
  }

  private heed(message: FromHub): void {
    switch (message.kind) {
      case "link": return this.linked(message.state);
      case "back": return this.back();
      case "sessions": return this.sessions.set(new Map(message.sessions.map((one) => [one.session_id, one])));
      case "changed": return this.relist(message.changed, message.removed);
      case "events": return this.find(message.session)?.take(message.events);
      case "restart": return this.find(message.session)?.restart();
      case "over": return this.over(message.session, message.reason);
    }
  }

  private linked(state: LinkState): void {
    this.link.set(state);
    if (state.is === "unauthorized") this.asking.set(true);
  }

  private back(): void {
    this.sender.resume();
    void this.learn();
    void this.compare();
  }

  /** Whether the page is still the server's: it was away, or a part of the page is. */
  async compare(): Promise<void> {
    try {
      if (isOutdated(await this.api.index(), ownScript())) this.outdated.set(true);
    } catch (error) {
      if (!(error instanceof Problem)) throw error; // else asked again when it is back
    }
  }

  private relist(changed: readonly SessionItem[], removed: readonly string[]): void {
    const sessions = new Map(this.sessions.get() ?? []);
    for (const one of changed) sessions.set(one.session_id, one);
    for (const id of removed) {
      sessions.delete(id);
      this.gone.add(id);
    }
    this.sessions.set(sessions);
  }

  async remove(id: string): Promise<void> {
    await this.api.remove(id);
    this.relist([], [id]);
  }

  private over(id: string, reason: string): void {
    const conversation = this.find(id);
    const sending = this.sender.list.get().some((one) => one.sessionId === id);
    conversation?.standing.set(reason === "deleted" ? "deleted" : sending ? "new" : "unknown");
  }

  /** Who is there, and what the server can do. */
  async learn(): Promise<void> {
    const asker = this.api; // what an earlier one is still told is not about whoever asks now
    try {
      const [{ agents }, { tools }, { scenarios, default: first }, { model_kind: model }] = await Promise.all([
        asker.agents(), asker.tools(), asker.scenarios(), asker.toolsStatus(),
      ]);
      if (this.api !== asker) return;
      const root = scenarios.find((one) => one.id === first)?.root ?? agents[0]?.name ?? null;
      const supervisors = new Set(scenarios.flatMap((one) => one.supervisor ?? []));
      this.team.set({ agents, tools, root, supervisors, model });
      this.routes.set(await this.api.routes());
      this.isAdmin.set((await this.api.me()).scopes.includes("admin"));
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (error.status === 401 && this.api === asker) this.asking.set(true);
    }
  }

  // --- conversations

  private show(id: string | null): void {
    if (id === (this.current.get()?.id ?? null)) return;
    const shown = id === null ? null : this.opened(id);
    this.current.set(shown);
    this.children.follow(shown?.session.get() ?? EMPTY, (child) => this.open.get(child));
    this.refollow();
  }

  /** One that is open, or that a subagent of the shown one works in. */
  find(id: string): Conversation | undefined {
    return this.open.get(id) ?? this.children.get(id);
  }

  private folded(one: Conversation): void {
    const session = one.session.get();
    this.sender.shown(session.clientIds);
    if (one === this.current.get() && this.children.follow(session, (child) => this.open.get(child))) this.refollow();
  }

  private opened(id: string): Conversation {
    const known = this.open.get(id);
    const conversation = known ?? new Conversation(id, (one) => this.folded(one));
    this.open.delete(id);
    this.open.set(id, conversation);
    if (known === undefined && this.sender.list.get().some((one) => one.sessionId === id)) conversation.standing.set("new");
    for (const old of [...this.open.keys()].slice(0, -OPEN_MAX)) this.open.delete(old);
    return conversation;
  }

  /** A message was taken: a conversation that was new is there now. */
  private arrived(id: string): void {
    const conversation = this.open.get(id);
    if (conversation?.standing.get() === "new") {
      conversation.standing.set("loading");
      this.refollow();
    }
    this.hurry();
  }

  /** Says something where one is, or begins a conversation with it. */
  say(text: string, how: "message" | "steer", agent: string | null): void {
    const here = this.current.get();
    const sessionId = here?.id ?? `c-${newId(8)}`;
    this.sender.add({ sessionId, text, how, agent: here === null ? (agent ?? "") : null });
    if (here === null) location.hash = `#/c/${encodeURIComponent(sessionId)}`;
  }
}
