import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { Api, NewMessage } from "../src/api/client";
import { Problem } from "../src/api/problem";
import { Sender } from "../src/store/sender";

const HERE = { sessionId: "c-1", how: "message", agent: null } as const;

/** A server that answers when it is told to. */
class Server {
  readonly asked: string[] = [];
  private readonly waiting: { resolve: (answer: unknown) => void; reject: (why: Problem) => void }[] = [];
  private readonly hear = ({ text }: NewMessage): Promise<unknown> => {
    this.asked.push(text);
    return new Promise((resolve, reject) => this.waiting.push({ resolve, reject }));
  };
  readonly api = { say: this.hear, steer: this.hear } as unknown as Api;

  async take(): Promise<void> {
    this.waiting.shift()?.resolve({});
    await vi.advanceTimersByTimeAsync(0);
  }

  async refuse(status: number): Promise<void> {
    this.waiting.shift()?.reject(new Problem(status, "no", "no"));
    await vi.advanceTimersByTimeAsync(0);
  }
}

let server: Server;
let sender: Sender;

beforeEach(() => {
  const stored = new Map<string, string>();
  vi.stubGlobal("sessionStorage", { getItem: (name: string) => stored.get(name) ?? null, setItem: (name: string, value: string) => void stored.set(name, value) });
  vi.useFakeTimers();
  server = new Server();
  sender = new Sender(() => server.api, () => undefined);
  for (const text of ["one", "two", "three"]) sender.add({ ...HERE, text });
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("what was written first arrives first, and nobody waits for another conversation", async () => {
  sender.add({ ...HERE, text: "elsewhere", sessionId: "c-2" });

  expect(server.asked).toEqual(["one", "elsewhere"]);
  await server.take();
  await server.take();
  await server.take();

  expect(server.asked).toEqual(["one", "elsewhere", "two", "three"]);
});

test("while the server is away the first is sent again, and the others wait behind it", async () => {
  await server.refuse(503);
  expect(server.asked).toEqual(["one"]);

  await vi.advanceTimersByTimeAsync(1_000);
  await server.take();

  expect(server.asked).toEqual(["one", "one", "two"]);
});

test("what the server will not have holds nothing up, and can be tried again", async () => {
  await server.refuse(422);
  expect(server.asked).toEqual(["one", "two"]);
  await server.take();
  await server.take();

  sender.again(sender.list.get()[0]?.clientId ?? "");

  expect(server.asked).toEqual(["one", "two", "three", "one"]);
});

test("with what is dropped, the way is free for the next", async () => {
  await server.refuse(503);

  sender.drop(sender.list.get()[0]?.clientId ?? "");

  expect(server.asked).toEqual(["one", "two"]);
});
