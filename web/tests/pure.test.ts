import { describe, expect, test } from "vitest";
import { argumentsOf, fieldsOf } from "../src/panels/schema";
import { baseOf, hashOf, parsePlace, takeToken } from "../src/store/address";
import { againIn, parseOutgoing } from "../src/store/outgoing";
import { asked, BURST_EVERY_MS, BURST_MS, burst, IDLE_MS, nextIn, pace, reconnectIn, SLOWEST_MS } from "../src/transport/pace";
import { isOutdated } from "../src/store/build";
import { FrameParser } from "../src/transport/sse";
import { brief, duration, left, pretty, size } from "../src/ui/format";

describe("server-sent events", () => {
  const stream = "retry: 1000\n\nid: s1:2\nevent: token\ndata: {\"a\":1}\n\n: heartbeat\n\nid: s1:3\r\nevent: run\r\ndata: one\r\ndata: two\r\n\r\n";
  const frames = [{ event: "token", data: '{"a":1}' }, { event: "run", data: "one\ntwo" }];

  test("come out the same however the bytes are cut", () => {
    for (let size = 1; size <= stream.length; size += 1) {
      const parser = new FrameParser();
      const found = [];
      for (let at = 0; at < stream.length; at += size) found.push(...parser.push(stream.slice(at, at + size)));
      expect(found).toEqual(frames);
    }
  });
});

describe("the pace of questions", () => {
  test("slows down while nothing is new, to a limit", () => {
    let now = pace(0);
    for (let round = 0; round < 20; round += 1) now = asked(now, false, 0);

    expect(nextIn(now, true, 0)).toBe(SLOWEST_MS);
    expect(nextIn(asked(now, true, 0), true, 2_000)).toBe(1_000);
  });

  test("is quick for a while after a send", () => {
    expect(nextIn(burst(1_000), true, 1_000)).toBe(BURST_EVERY_MS);
    expect(nextIn(burst(1_000), true, 1_001 + BURST_MS)).toBeGreaterThan(BURST_EVERY_MS);
  });

  test("pauses where nobody looks, and stops after a long while", () => {
    expect(nextIn(pace(0), false, 1)).toBe("hidden");
    expect(nextIn(pace(0), true, IDLE_MS + 1)).toBe("idle");
  });

  test("a lost connection is tried again soon, then less often, never all at once", () => {
    expect(reconnectIn(1, 0.5)).toBe(500);
    expect(reconnectIn(20, 0.5)).toBe(10_000);
    expect(reconnectIn(3, 0)).not.toBe(reconnectIn(3, 1));
    expect([1, 2, 3, 20].map(againIn)).toEqual([800, 1600, 3200, 15_000]);
  });
});

describe("addresses of the page", () => {
  test("the token is taken out of the fragment, and what else is there stays", () => {
    expect(takeToken("#token=abc")).toEqual({ token: "abc", rest: "" });
    expect(takeToken("#/c/one&token=a%2Fb")).toEqual({ token: "a/b", rest: "#/c/one" });
    expect(takeToken("#/c/one")).toEqual({ token: null, rest: "#/c/one" });
  });

  test("a conversation has an address, whatever is in its id", () => {
    for (const id of ["c-1", "a/b c", "größe", "50%"]) expect(parsePlace(hashOf(id))).toEqual({ conversation: id });
    expect(parsePlace("#/c/50%")).toEqual({ conversation: "50%" });
    expect(parsePlace("")).toEqual({ conversation: null });
  });

  test("the API is beside the page, under any path", () => {
    expect(baseOf({ origin: "https://x.org", pathname: "/" })).toBe("https://x.org/");
    expect(baseOf({ origin: "https://x.org", pathname: "/team/index.html" })).toBe("https://x.org/team/");
  });
});

describe("a form from a schema", () => {
  const fields = fieldsOf({
    required: ["query"],
    properties: {
      query: { type: "string", description: "Words" }, limit: { type: "integer", default: 5 }, deep: { type: "boolean" },
      mode: { enum: ["a", "b"] }, tags: { type: "array" }, note: { anyOf: [{ type: "string" }, { type: "null" }], default: null },
    },
  });

  test("has a field of the right sort for each property", () => {
    expect(fields.map(({ name, sort, required }) => [name, sort, required])).toEqual([
      ["query", "text", true], ["limit", "integer", false], ["deep", "yes", false], ["mode", "choice", false], ["tags", "json", false], ["note", "text", false],
    ]);
  });

  test("makes arguments of what was filled in, and leaves out what was left blank", () => {
    expect(argumentsOf(fields, { query: "lamp", deep: "true", tags: "[1]" })).toEqual({
      args: { query: "lamp", limit: 5, deep: true, tags: [1] }, wrong: {},
    });
  });

  test("says what is wrong, by field", () => {
    expect(argumentsOf(fields, { limit: "2.5", tags: "[" }).wrong).toEqual({ query: "needed", limit: "not a number", tags: "not JSON" });
  });
});

test("what was kept by an older page, or broken, is nothing to send", () => {
  expect(parseOutgoing("{")).toEqual([]);
  expect(parseOutgoing('{"a":1}')).toEqual([]);
  expect(parseOutgoing('[{"clientId":"k","text":"x"}]')).toHaveLength(1);
});

test("a tab knows that the server has another page by the name of its script", () => {
  const index = (name: string): string => `<script src="./page/theme.js"></script>\n<script type="module" crossorigin src="./page/${name}"></script>`;
  const own = "https://x.org/team/page/index-AbCd1234.js";

  expect(isOutdated(index("index-AbCd1234.js"), own)).toBe(false);
  expect(isOutdated(index("index-EfGh5678.js"), own)).toBe(true);
  expect(isOutdated("<h1>plain</h1>", own)).toBe(false);
  expect(isOutdated('<script src="/src/main.tsx"></script>', "https://x.org/src/main.tsx")).toBe(false);
});

test("figures read well", () => {
  expect([12, 1_200, 61_000].map(duration)).toEqual(["12 ms", "1.2 s", "1 min 1 s"]);
  expect([1_000, 3.6e6, 86_399_000, 2.6e8].map(left)).toEqual(["1 minute", "60 minutes", "24 hours", "3 days"]);
  expect([1, 999, 20_000, 8.4e6].map(size)).toEqual(["1 byte", "999 bytes", "20 kB", "8.4 MB"]);
  expect(pretty('{"a":1}')).toBe('{\n  "a": 1\n}');
  expect(pretty("{not json")).toBe("{not json");
  expect(brief({ city: "Oslo", n: 2, empty: "" })).toBe("Oslo, 2");
});
