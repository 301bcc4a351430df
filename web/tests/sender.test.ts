import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { ApiClient, NewMessage } from "../src/api/client";
import { ApiError } from "../src/api/errors";
import { MessageSender } from "../src/store/sender";

const MESSAGE = { sessionId: "c-1", how: "message", agent: null } as const;

/** A server that responds when the test tells it to. */
class Server {
  readonly requests: string[] = [];
  private readonly waiting: { resolve: (response: unknown) => void; reject: (error: ApiError) => void }[] = [];
  private readonly receive = ({ text }: NewMessage): Promise<unknown> => {
    this.requests.push(text);
    return new Promise((resolve, reject) => this.waiting.push({ resolve, reject }));
  };
  readonly api = { sendMessage: this.receive, steer: this.receive } as unknown as ApiClient;

  async accept(): Promise<void> {
    this.waiting.shift()?.resolve({});
    await vi.advanceTimersByTimeAsync(0);
  }

  async reject(status: number): Promise<void> {
    this.waiting.shift()?.reject(new ApiError(status, "no", "no"));
    await vi.advanceTimersByTimeAsync(0);
  }
}

let server: Server;
let sender: MessageSender;

beforeEach(() => {
  const stored = new Map<string, string>();
  vi.stubGlobal("sessionStorage", { getItem: (name: string) => stored.get(name) ?? null, setItem: (name: string, value: string) => void stored.set(name, value) });
  vi.useFakeTimers();
  server = new Server();
  sender = new MessageSender(() => server.api, () => undefined);
  for (const text of ["one", "two", "three"]) sender.add({ ...MESSAGE, text });
});

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("messages of one conversation are sent in order, without waiting for other conversations", async () => {
  sender.add({ ...MESSAGE, text: "elsewhere", sessionId: "c-2" });

  expect(server.requests).toEqual(["one", "elsewhere"]);
  await server.accept();
  await server.accept();
  await server.accept();

  expect(server.requests).toEqual(["one", "elsewhere", "two", "three"]);
});

test("while the server is unavailable the first message is retried and the others wait", async () => {
  await server.reject(503);
  expect(server.requests).toEqual(["one"]);

  await vi.advanceTimersByTimeAsync(1_000);
  await server.accept();

  expect(server.requests).toEqual(["one", "one", "two"]);
});

test("a rejected message does not block the next, and can be sent again", async () => {
  await server.reject(422);
  expect(server.requests).toEqual(["one", "two"]);
  await server.accept();
  await server.accept();

  sender.retry(sender.pending.get()[0]?.clientId ?? "");

  expect(server.requests).toEqual(["one", "two", "three", "one"]);
});

test("discarding a waiting message lets the next one be sent", async () => {
  await server.reject(503);

  sender.discard(sender.pending.get()[0]?.clientId ?? "");

  expect(server.requests).toEqual(["one", "two"]);
});
