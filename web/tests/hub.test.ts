// The hub against a real HTTP server that streams, breaks and holds back.
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { Hubs } from "../src/transport/hubs";
import type { FromHub, ToHub } from "../src/transport/protocol";
import { event } from "./logs";

const EVENTS = 30;

class Gateway {
  readonly asked: string[] = [];
  streams: ServerResponse[] = [];
  mode: "open" | "held" | "refused" = "open";
  cutAfter = EVENTS;
  private server!: Server;
  base = "";

  async start(): Promise<void> {
    this.server = createServer((request, answer) => this.answer(request, answer));
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

  private answer(request: IncomingMessage, answer: ServerResponse): void {
    const url = new URL(request.url ?? "", "http://x");
    this.asked.push(request.url ?? "");
    if (request.headers.authorization !== "Bearer right") return void answer.writeHead(401).end();
    if (url.pathname === "/health") return void answer.end("{}");
    if (url.pathname === "/api/stream") return this.stream(url, answer);
    if (url.pathname === "/api/sdk/sessions") return json(answer, { sessions: [], next: null });
    const since = Number(url.searchParams.get("since"));
    json(answer, { session_id: "s1", events: some(since, EVENTS), next_since: EVENTS, has_more: false });
  }

  private stream(url: URL, answer: ServerResponse): void {
    if (this.mode === "refused") return void answer.destroy();
    answer.writeHead(200, { "content-type": "text/event-stream" });
    this.streams.push(answer);
    if (this.mode === "held") return void answer.end();
    answer.write("event: sessions\ndata: {\"sessions\":[]}\n\n");
    for (const place of url.searchParams.getAll("session")) {
      const [id = "", since = "0"] = decodeURIComponent(place).split(":");
      for (const one of some(Number(since), this.cutAfter)) answer.write(`event: token\ndata: ${JSON.stringify({ ...one, session_id: id })}\n\n`);
    }
  }
}

const some = (since: number, until: number) => Array.from({ length: Math.max(0, until - since) }, (_, n) => event(since + n + 1, "token"));
const json = (answer: ServerResponse, body: object): void => void answer.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(body));

class Tab {
  readonly heard: FromHub[] = [];
  readonly say: (message: ToHub) => void;

  constructor(hubs: Hubs, base: string, token = "right") {
    this.say = hubs.connect((message) => this.heard.push(message));
    this.say({ kind: "hello", tab: "t", base, token, visible: true });
  }

  seqs(session = "s1"): number[] {
    return this.heard.flatMap((one) => (one.kind === "events" && one.session === session ? one.events.map((found) => found.seq) : []));
  }

  state(): string | undefined {
    return this.heard.findLast((one) => one.kind === "link")?.state.is;
  }
}

const ALL = Array.from({ length: EVENTS }, (_, n) => n + 1);
const soon = { timeout: 15_000, interval: 10 };
let gateway: Gateway;
let tabs: Tab[];
let hubs: Hubs;

beforeEach(async () => {
  gateway = new Gateway();
  await gateway.start();
  hubs = new Hubs(true);
  tabs = [];
});

afterEach(() => {
  for (const tab of tabs) tab.say({ kind: "bye" });
  gateway.stop();
});

const open = (token?: string): Tab => {
  const tab = new Tab(hubs, gateway.base, token);
  tabs.push(tab);
  return tab;
};

describe("one connection for all tabs", () => {
  test("every tab hears everything of its session once, over one stream", async () => {
    const [one, two] = [open(), open()];
    one.say({ kind: "follow", sessions: { s1: 0 } });
    two.say({ kind: "follow", sessions: { s1: 0, s2: 10 } });

    await vi.waitFor(() => expect([one.seqs(), two.seqs(), two.seqs("s2")]).toEqual([ALL, ALL, ALL.slice(10)]), soon);
    expect(one.seqs("s2")).toEqual([]);
    expect(gateway.streams).toHaveLength(1);
    expect(one.state()).toBe("live");
  });

  test("a tab that comes later gets what it lacks, and the others nothing twice", async () => {
    const one = open();
    one.say({ kind: "follow", sessions: { s1: 0 } });
    await vi.waitFor(() => expect(one.seqs()).toEqual(ALL), soon);
    const late = open();
    late.say({ kind: "follow", sessions: { s1: 20 } });

    await vi.waitFor(() => expect(late.seqs()).toEqual(ALL.slice(20)), soon);
    expect(one.seqs()).toEqual(ALL);
  });

  test("a broken stream goes on after the last event, without a hole or a repeat", async () => {
    gateway.cutAfter = 12;
    const tab = open();
    tab.say({ kind: "follow", sessions: { s1: 0 } });
    await vi.waitFor(() => expect(tab.seqs()).toEqual(ALL.slice(0, 12)), soon);
    gateway.cutAfter = EVENTS;
    gateway.cut();

    await vi.waitFor(() => expect(tab.seqs()).toEqual(ALL), soon);
    expect(gateway.asked.at(-1)).toContain(encodeURIComponent("s1:12"));
    expect(tab.heard.filter((one) => one.kind === "back")).toHaveLength(1);
  });

  test("what every tab shows is followed, however much they keep an eye on besides", async () => {
    for (const shown of ["a", "b", "c"]) {
      const beside = Object.fromEntries(Array.from({ length: 30 }, (_, n) => [`${shown}~x-${n}`, EVENTS]));
      open().say({ kind: "follow", sessions: { [shown]: EVENTS, ...beside } });
    }

    const asked = (): string[] => new URL(gateway.asked.at(-1) ?? "", "http://x").searchParams.getAll("session");
    await vi.waitFor(() => expect(asked()).toHaveLength(50), soon);
    expect(asked()).toEqual(expect.arrayContaining(["a:30", "b:30", "c:30"]));
  });

  test("a wrong token is told", async () => {
    const tab = open("wrong");

    await vi.waitFor(() => expect(tab.state()).toBe("unauthorized"), soon);
  });
});

describe("where streams do not get through", () => {
  test.each(["held", "refused"] as const)("%s: questions are asked instead, and nothing is lost", async (mode) => {
    gateway.mode = mode;
    const tab = open();
    tab.say({ kind: "follow", sessions: { s1: 0 } });

    await vi.waitFor(() => expect(tab.state()).toBe("polling"), soon);
    await vi.waitFor(() => expect(tab.seqs()).toEqual(ALL), soon);
  });
});
