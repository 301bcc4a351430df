import { describe, expect, test } from "vitest";
import { SESSIONS_PAGE } from "../src/api/client";
import type { SessionSummary } from "../src/api/types";
import { formFields, parseArguments } from "../src/panels/schemaForm";
import { isOutdated } from "../src/store/pageVersion";
import { apiBaseUrl, conversationHash, extractToken, parseRoute } from "../src/store/route";
import { parsePending, retryDelay } from "../src/store/sender";
import { countStates, mergeSessions } from "../src/store/sessions";
import { parseAttached } from "../src/store/uploads";
import { afterPoll, BURST_DURATION_MS, BURST_INTERVAL_MS, burstSchedule, IDLE_AFTER_MS, INTERVAL_MAX_MS, newSchedule, nextPollDelay } from "../src/transport/polling";
import { reconnectDelay } from "../src/transport/sharedConnection";
import { SseParser } from "../src/transport/stream";
import { formatBytes, formatDuration, formatJson, formatTimeLeft, prettyJson, summarizeArguments } from "../src/ui/format";

describe("server-sent events", () => {
  const stream = "retry: 1000\n\nid: s1:2\nevent: token\ndata: {\"a\":1}\n\n: heartbeat\n\nid: s1:3\r\nevent: run\r\ndata: one\r\ndata: two\r\n\r\n";
  const frames = [{ event: "token", data: '{"a":1}' }, { event: "run", data: "one\ntwo" }];

  test("are parsed the same however the stream is split into chunks", () => {
    for (let size = 1; size <= stream.length; size += 1) {
      const parser = new SseParser();
      const found = [];
      for (let at = 0; at < stream.length; at += size) found.push(...parser.push(stream.slice(at, at + size)));
      expect(found).toEqual(frames);
    }
  });
});

describe("the polling schedule", () => {
  test("slows down to a limit while nothing is new", () => {
    let now = newSchedule(0);
    for (let round = 0; round < 20; round += 1) now = afterPoll(now, false, 0);

    expect(nextPollDelay(now, true, 0)).toBe(INTERVAL_MAX_MS);
    expect(nextPollDelay(afterPoll(now, true, 0), true, 2_000)).toBe(1_000);
  });

  test("is fast for a while after a message is sent", () => {
    expect(nextPollDelay(burstSchedule(1_000), true, 1_000)).toBe(BURST_INTERVAL_MS);
    expect(nextPollDelay(burstSchedule(1_000), true, 1_001 + BURST_DURATION_MS)).toBeGreaterThan(BURST_INTERVAL_MS);
  });

  test("pauses in a hidden tab, and stops after a long time without activity", () => {
    expect(nextPollDelay(newSchedule(0), false, 1)).toBe("hidden");
    expect(nextPollDelay(newSchedule(0), true, IDLE_AFTER_MS + 1)).toBe("idle");
  });

  test("reconnects and retries back off exponentially; reconnects have jitter", () => {
    expect(reconnectDelay(1, 0.5)).toBe(500);
    expect(reconnectDelay(20, 0.5)).toBe(10_000);
    expect(reconnectDelay(3, 0)).not.toBe(reconnectDelay(3, 1));
    expect([1, 2, 3, 20].map(retryDelay)).toEqual([800, 1600, 3200, 15_000]);
  });
});

describe("JSON of untrusted values", () => {
  const nested = (depth: number): string => "[".repeat(depth) + "]".repeat(depth);

  test("is not indented beyond a depth: the indentation of 6 kB would be 18 MB", () => {
    expect(prettyJson(nested(3_000))).toBe(nested(3_000));
    expect(prettyJson(nested(100_000))).toBe(nested(100_000));
    expect(formatJson(JSON.parse(nested(3_000)))).toBe(nested(3_000));
    expect(formatJson(JSON.parse(nested(100_000)))).toBe("This value is nested too deeply to be shown.");
  });

  test("is shortened where one line is shown", () => {
    expect(summarizeArguments({ a: "x".repeat(1_000_000), b: JSON.parse(nested(3_000)) }).length).toBeLessThan(1_000);
  });
});

describe("the list of conversations", () => {
  const session = (id: string, at: number, fields: Partial<SessionSummary> = {}): SessionSummary => ({
    session_id: id, title: id, last_text: null, active_agent_id: null, scenario_id: null, run_status: "finished", approvals: 0, client_calls: 0, last_seq: 1, last_active_ms: at, owner: null, ...fields,
  });
  const recent = Array.from({ length: SESSIONS_PAGE }, (_, n) => session(`r${n}`, 1_000 + n));
  const mapOf = (...sessions: SessionSummary[]): Map<string, SessionSummary> => new Map(sessions.map((one) => [one.session_id, one]));

  test("older conversations that were loaded stay when the recent ones are sent again, deleted ones do not", () => {
    const merged = mergeSessions(mapOf(session("old", 5), session("deleted", 1_050)), recent);

    expect([merged.size, merged.has("old"), merged.has("deleted")]).toEqual([SESSIONS_PAGE + 1, true, false]);
  });

  test("a list that is not full is the whole list", () => {
    expect([...mergeSessions(mapOf(session("old", 5)), recent.slice(1)).keys()]).not.toContain("old");
  });

  test("are counted by state; a run that waits for an approval or its client is not running", () => {
    const counts = countStates([session("a", 1, { run_status: "running", approvals: 2 }), session("b", 2, { run_status: "running" }), session("c", 3, { run_status: "failed" }), session("d", 4), session("e", 5, { run_status: "running", client_calls: 1 })]);

    expect(counts).toEqual({ waiting: 2, running: 1, failed: 1, complete: true });
  });
});

describe("the URL of the page", () => {
  test("the token is removed from the fragment, and the rest stays", () => {
    expect(extractToken("#token=abc")).toEqual({ token: "abc", rest: "" });
    expect(extractToken("#/c/one&token=a%2Fb")).toEqual({ token: "a/b", rest: "#/c/one" });
    expect(extractToken("#/c/one")).toEqual({ token: null, rest: "#/c/one" });
  });

  test("a conversation id survives the round trip through the fragment", () => {
    for (const id of ["c-1", "a/b c", "größe", "50%"]) expect(parseRoute(conversationHash(id))).toEqual({ conversationId: id });
    expect(parseRoute("#/c/50%")).toEqual({ conversationId: "50%" });
    expect(parseRoute("")).toEqual({ conversationId: null });
  });

  test("the API is next to the page, under any path", () => {
    expect(apiBaseUrl({ origin: "https://x.org", pathname: "/" })).toBe("https://x.org/");
    expect(apiBaseUrl({ origin: "https://x.org", pathname: "/team/index.html" })).toBe("https://x.org/team/");
  });
});

describe("the form of a JSON Schema", () => {
  const fields = formFields({
    required: ["query"],
    properties: {
      query: { type: "string", description: "Words" }, limit: { type: "integer", default: 5 }, deep: { type: "boolean" },
      mode: { enum: ["a", "b"] }, tags: { type: "array" }, note: { anyOf: [{ type: "string" }, { type: "null" }], default: null },
    },
  });

  test("has a field of the right type for each property", () => {
    expect(fields.map(({ name, type, required }) => [name, type, required])).toEqual([
      ["query", "text", true], ["limit", "integer", false], ["deep", "boolean", false], ["mode", "choice", false], ["tags", "json", false], ["note", "text", false],
    ]);
  });

  test("parses the filled fields into arguments and leaves out blank ones", () => {
    expect(parseArguments(fields, { query: "lamp", deep: "true", tags: "[1]" })).toEqual({
      args: { query: "lamp", limit: 5, deep: true, tags: [1] }, errors: {},
    });
  });

  test("reports errors by field", () => {
    expect(parseArguments(fields, { limit: "2.5", tags: "[" }).errors).toEqual({ query: "Required", limit: "Not a whole number", tags: "Not valid JSON" });
  });
});

test("unreadable stored messages are ignored", () => {
  expect(parsePending("{")).toEqual([]);
  expect(parsePending('{"a":1}')).toEqual([]);
  expect(parsePending('[{"clientId":"k","text":"x"}]')).toHaveLength(1);
});

test("the content of a file that was not uploaded is gone after a reload", () => {
  const item = { key: "k", sessionId: "c-1", name: "a.txt", bytes: 1, preview: "blob:1", progress: 0.5, error: null, retryable: true };
  const file = { file_id: "f", name: "a.txt", media_type: "text/plain", size: 1 };
  expect(parseAttached("{")).toEqual([]);
  expect(parseAttached(JSON.stringify([{ ...item, file }]))).toEqual([{ ...item, file, preview: null, retryable: false }]);
  expect(parseAttached(JSON.stringify([{ ...item, file: null }]))[0]?.error).toContain("interrupted");
});

test("a tab detects a newer page by the name of its script", () => {
  const index = (name: string): string => `<script src="./page/theme.js"></script>\n<script type="module" crossorigin src="./page/${name}"></script>`;
  const own = "https://x.org/team/page/index-AbCd1234.js";

  expect(isOutdated(index("index-AbCd1234.js"), own)).toBe(false);
  expect(isOutdated(index("index-EfGh5678.js"), own)).toBe(true);
  expect(isOutdated("<h1>plain</h1>", own)).toBe(false);
  expect(isOutdated('<script src="/src/main.tsx"></script>', "https://x.org/src/main.tsx")).toBe(false);
});

test("numbers, durations, sizes and JSON are formatted for reading", () => {
  expect([12, 1_200, 61_000].map(formatDuration)).toEqual(["12 ms", "1.2 s", "1 min 1 s"]);
  expect([1_000, 3.6e6, 86_399_000, 2.6e8].map(formatTimeLeft)).toEqual(["1 minute", "60 minutes", "24 hours", "3 days"]);
  expect([1, 999, 20_000, 8.4e6].map(formatBytes)).toEqual(["1 byte", "999 bytes", "20 kB", "8.4 MB"]);
  expect(prettyJson('{"a":1}')).toBe('{\n  "a": 1\n}');
  expect(prettyJson("{not json")).toBe("{not json");
  expect(summarizeArguments({ city: "Oslo", n: 2, empty: "" })).toBe("Oslo, 2");
});
