// The shared connection against a real HTTP server that streams, breaks off, and blocks streams.
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { FromTab, ToTab } from "../src/transport/protocol";
import { ConnectionPool } from "../src/transport/sharedConnection";
import { event } from "./recordedEvents";

const EVENTS = 30;

/** A gateway that serves 30 events per session. */
class Gateway {
  readonly requests: string[] = [];
  streams: ServerResponse[] = [];
  mode: "open" | "empty" | "refused" | "html" | 403 | 502 | 503 = "open";
  cutAfter = EVENTS;
  private server!: Server;
  base = "";

  async start(): Promise<void> {
    this.server = createServer((request, response) => this.respond(request, response));
    await new Promise<void>((ready) => this.server.listen(0, "127.0.0.1", ready));
    this.base = `http://127.0.0.1:${(this.server.address() as AddressInfo).port}/`;
  }

  stop(): void {
    this.server.closeAllConnections();
    this.server.close();
  }

  cut(): void {
    for (const stream of this.streams) stream.destroy();
    this.streams = [];
  }

  private respond(request: IncomingMessage, response: ServerResponse): void {
    const url = new URL(request.url ?? "", "http://x");
    this.requests.push(request.url ?? "");
    if (request.headers.authorization !== "Bearer right") return void response.writeHead(401).end();
    if (url.pathname === "/health") return void response.end("{}");
    if (url.pathname === "/api/stream") return this.stream(url, response);
    if (url.pathname === "/api/sdk/sessions") return json(response, { sessions: [], next: null });
    const since = Number(url.searchParams.get("since"));
    json(response, { session_id: "s1", events: eventsBetween(since, EVENTS), next_since: EVENTS, has_more: false });
  }

  private stream(url: URL, response: ServerResponse): void {
    if (this.mode === "refused") return void response.destroy();
    if (typeof this.mode === "number") return void response.writeHead(this.mode, { "content-type": "text/html" }).end("<h1>no</h1>");
    if (this.mode === "html") return void response.writeHead(200, { "content-type": "text/html" }).end("<h1>Sign in to the network</h1>");
    response.writeHead(200, { "content-type": "text/event-stream" });
    this.streams.push(response);
    if (this.mode === "empty") return void response.end();
    response.write("event: sessions\ndata: {\"sessions\":[]}\n\n");
    for (const cursor of url.searchParams.getAll("session")) {
      const [id = "", since = "0"] = decodeURIComponent(cursor).split(":");
      for (const one of eventsBetween(Number(since), this.cutAfter)) response.write(`event: token\ndata: ${JSON.stringify({ ...one, session_id: id })}\n\n`);
    }
  }
}

const eventsBetween = (since: number, until: number) => Array.from({ length: Math.max(0, until - since) }, (_, n) => event(since + n + 1, "token"));
const json = (response: ServerResponse, body: object): void => void response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(body));

class Tab {
  readonly received: ToTab[] = [];
  readonly send: (message: FromTab) => void;

  constructor(pool: ConnectionPool, base: string, token = "right") {
    this.send = pool.addTab((message) => this.received.push(message));
    this.send({ kind: "connect", tab: "t", base, token, visible: true });
  }

  seqs(session = "s1"): number[] {
    return this.received.flatMap((one) => (one.kind === "events" && one.session === session ? one.events.map((found) => found.seq) : []));
  }

  states(): string[] {
    return this.received.flatMap((one) => (one.kind === "status" ? [one.status.state] : []));
  }

  state(): string | undefined {
    return this.received.findLast((one) => one.kind === "status")?.status.state;
  }
}

const ALL = Array.from({ length: EVENTS }, (_, n) => n + 1);
const soon = { timeout: 15_000, interval: 10 };
vi.setConfig({ testTimeout: 40_000 }); // longer than two waits: otherwise a test ends before its own deadline
let gateway: Gateway;
let tabs: Tab[];
let pool: ConnectionPool;

beforeEach(async () => {
  gateway = new Gateway();
  await gateway.start();
  pool = new ConnectionPool(true);
  tabs = [];
});

afterEach(() => {
  for (const tab of tabs) tab.send({ kind: "disconnect" });
  gateway.stop();
});

const openTab = (token?: string): Tab => {
  const tab = new Tab(pool, gateway.base, token);
  tabs.push(tab);
  return tab;
};

describe("one connection for all tabs", () => {
  test("every tab receives each event of its sessions once, over one stream", async () => {
    const [one, two] = [openTab(), openTab()];
    one.send({ kind: "subscribe", sessions: { s1: 0 } });
    two.send({ kind: "subscribe", sessions: { s1: 0, s2: 10 } });

    await vi.waitFor(() => expect([one.seqs(), two.seqs(), two.seqs("s2")]).toEqual([ALL, ALL, ALL.slice(10)]), soon);
    expect(one.seqs("s2")).toEqual([]);
    expect(gateway.streams).toHaveLength(1);
    expect(one.state()).toBe("live");
  });

  test("a tab that is opened later receives what it lacks, and the others receive nothing twice", async () => {
    const one = openTab();
    one.send({ kind: "subscribe", sessions: { s1: 0 } });
    await vi.waitFor(() => expect(one.seqs()).toEqual(ALL), soon);
    const late = openTab();
    late.send({ kind: "subscribe", sessions: { s1: 20 } });

    await vi.waitFor(() => expect(late.seqs()).toEqual(ALL.slice(20)), soon);
    expect(one.seqs()).toEqual(ALL);
  });

  test("a broken stream resumes after the last event, without gaps or repeats", async () => {
    gateway.cutAfter = 12;
    const tab = openTab();
    tab.send({ kind: "subscribe", sessions: { s1: 0 } });
    await vi.waitFor(() => expect(tab.seqs()).toEqual(ALL.slice(0, 12)), soon);
    gateway.cutAfter = EVENTS;
    gateway.cut();

    await vi.waitFor(() => expect(tab.seqs()).toEqual(ALL), soon);
    expect(gateway.requests.at(-1)).toContain(encodeURIComponent("s1:12"));
    expect(tab.received.filter((one) => one.kind === "reconnected")).toHaveLength(1);
  });

  test("the session that a tab shows is followed, however many subagents are followed as well", async () => {
    for (const shown of ["a", "b", "c"]) {
      const subagents = Object.fromEntries(Array.from({ length: 30 }, (_, n) => [`${shown}~x-${n}`, EVENTS]));
      openTab().send({ kind: "subscribe", sessions: { [shown]: EVENTS, ...subagents } });
    }

    const followed = (): string[] => new URL(gateway.requests.at(-1) ?? "", "http://x").searchParams.getAll("session");
    await vi.waitFor(() => expect(followed()).toHaveLength(50), soon);
    expect(followed()).toEqual(expect.arrayContaining(["a:30", "b:30", "c:30"]));
  });

  test("a wrong token is reported", async () => {
    const tab = openTab("wrong");

    await vi.waitFor(() => expect(tab.state()).toBe("unauthorized"), soon);
  });
});

describe("blocked streams", () => {
  test.each(["empty", "refused", "html", 403, 502, 503] as const)("%s stream: the connection polls instead, and no event is lost", async (mode) => {
    gateway.mode = mode;
    const tab = openTab();
    tab.send({ kind: "subscribe", sessions: { s1: 0 } });

    await vi.waitFor(() => expect(tab.state()).toBe("polling"), soon);
    await vi.waitFor(() => expect(tab.seqs()).toEqual(ALL), soon);
    expect(tab.states()).not.toContain("offline");
  });

  test("a tab without permission to stream polls, and streams when it gets the permission", async () => {
    const tab = openTab();
    tab.send({ kind: "may_stream", allowed: false });
    tab.send({ kind: "subscribe", sessions: { s1: 0 } });
    await vi.waitFor(() => expect([tab.state(), tab.seqs()]).toEqual(["polling", ALL]), soon);
    expect(gateway.streams).toHaveLength(0);

    tab.send({ kind: "may_stream", allowed: true });

    await vi.waitFor(() => expect(tab.state()).toBe("live"), soon);
    expect(tab.seqs()).toEqual(ALL);
  });
});
