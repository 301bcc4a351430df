import { describe, expect, test } from "vitest";
import type { SessionEvent } from "../src/api/types";
import { rowsOf } from "../src/chat/rows";
import { fold } from "../src/fold/fold";
import { activeRun, type AnswerItem, EMPTY_SESSION, isAwaitingApproval, lastAnswer, type LogItem, type SessionState, type ToolItem, type UserItem, workState } from "../src/fold/state";
import { parentConversation } from "../src/store/subagents";
import { event, recordedEvents } from "./recordedEvents";

const kinds = (session: SessionState): string[] => session.items.map((item) => item.kind);
const only = <K extends LogItem["kind"]>(session: SessionState, kind: K): Extract<LogItem, { kind: K }>[] =>
  session.items.filter((item): item is Extract<LogItem, { kind: K }> => item.kind === kind);
const LOGS = [
  "tool", "handoff", "tool_that_fails", "by_hand", "stopped", "steered", "block", "block_that_fails", "block_in_part", "failed", "approvals", "subagent",
];

describe("recorded logs", () => {
  test("a tool call shows the question, the tool with its result, and the answer with its usage", () => {
    const session = fold(EMPTY_SESSION, recordedEvents("tool"));

    expect(kinds(session)).toEqual(["user", "tool", "answer"]);
    expect(only(session, "tool")[0]).toMatchObject({ name: "weather", args: { city: "Oslo" }, status: "success", manual: false });
    expect(only(session, "answer")[0]).toMatchObject({ agent: "general", streaming: false, usage: { requests: 2 } });
    expect(session.runs[0]?.spans.map((span) => span.name)).toEqual(["model", "weather", "model"]);
    expect(session.clientIds).toEqual(new Set(["k1"]));
    expect(activeRun(session)).toBeNull();
  });

  test("a handoff shows both agents and the reason, and changes the active agent", () => {
    const session = fold(EMPTY_SESSION, recordedEvents("handoff"));

    expect(only(session, "handoff").map(({ from, to, reason }) => [from, to, reason])).toEqual([
      ["general", "sales", null],
      ["sales", "support", "manual_switch"],
    ]);
    expect(session.activeAgent).toBe("support");
    expect(only(session, "answer").map((item) => item.agent)).toEqual(["sales", "sales"]);
  });

  test("a failed tool call shows its error", () => {
    const [tool] = only(fold(EMPTY_SESSION, recordedEvents("tool_that_fails")), "tool");

    expect(tool?.status).toBe("error");
    expect(tool?.error).toContain("ArgumentsError");
  });

  test("a tool that a user runs manually adds no message", () => {
    const session = fold(EMPTY_SESSION, recordedEvents("by_hand"));

    expect(kinds(session)).toEqual(["tool"]);
    expect(only(session, "tool")[0]).toMatchObject({ manual: true, status: "success" });
  });

  test("a stopped answer keeps its text, and can be retried until a retry was made", () => {
    const events = recordedEvents("stopped");
    const end = events.findIndex((one) => one.data["status"] === "stopped") + 1;
    const stopped = fold(EMPTY_SESSION, events.slice(0, end));
    const retried = fold(stopped, events.slice(end));
    const retryable = (session: SessionState): boolean[] =>
      rowsOf(session, [], new Map()).flatMap((row) => (row.kind === "item" && (row.item.kind === "notice" || row.item.kind === "failure") ? [row.state.retryable] : []));

    expect(only(stopped, "answer")[0]).toMatchObject({ streaming: false, text: "held: one two " });
    expect(retryable(stopped)).toEqual([true]);
    expect(retryable(retried)).toEqual([false]);
    expect(only(retried, "answer").at(-1)?.text).toBe("held: one two three four five six");
  });

  test("a failed run shows one item, with its reason and a retry", () => {
    const session = fold(EMPTY_SESSION, recordedEvents("failed"));

    expect(only(session, "notice")).toEqual([]);
    expect(only(session, "failure")).toMatchObject([{ status: "failed", attempts: 1, cause: "ModelRefused: told to fail", retryOf: expect.stringMatching(/^msg-/) }]);
  });

  test.each(LOGS)("%s folds to the same state in one batch, event by event, and with repeated events", (name) => {
    const events = recordedEvents(name);
    const whole = fold(EMPTY_SESSION, events);
    const single = events.reduce((session, one) => fold(session, [one]), EMPTY_SESSION);
    const repeated = fold(fold(whole, events), events.slice(3));

    expect(single).toEqual(whole);
    expect(repeated).toBe(whole);
  });

  test.each(LOGS)("%s leaves no answer, tool or run open at its end", (name) => {
    const session = fold(EMPTY_SESSION, recordedEvents(name));

    expect(only(session, "answer").filter((item) => item.streaming)).toEqual([]);
    expect(only(session, "tool").filter((item) => item.status === "running")).toEqual([]);
    expect(session.runs.filter((run) => run.status === "running")).toEqual([]);
  });
});

describe("failed attempts", () => {
  const run = (seq: number, status: string, attempt: number, fields: Partial<SessionEvent> = {}) =>
    event(seq, "run", { ...fields, data: { run_id: "run-1", envelope_id: "m1", status, attempt, ...fields.data } });
  const failed = (seq: number, attempt: number) =>
    event(seq, "error", { text: "ModelUnavailable: no answer", reason: "run_failed", data: { run_id: "run-1", attempt, retry_in_s: 4 } });
  const attempts = (count: number) => Array.from({ length: count }, (_, n) => [failed(2 * n + 2, n + 1), run(2 * n + 3, "restarted", n + 2)]).flat();
  const started = [run(1, "started", 1)];

  test("are one item, which counts them and says when the next attempt starts", () => {
    const session = fold(EMPTY_SESSION, [...started, ...attempts(14), failed(40, 15)]);

    expect(session.items).toMatchObject([{ kind: "failure", attempts: 15, status: "retrying", retryAt: event(40, "error").timestamp_ms + 4_000, cause: "ModelUnavailable: no answer" }]);
    expect(rowsOf(session, [], new Map()).map((row) => row.kind)).toEqual(["item"]);
  });

  test("are not a takeover: a retry that runs is no notice", () => {
    const session = fold(EMPTY_SESSION, [...started, ...attempts(1)]);

    expect(session.items).toMatchObject([{ kind: "failure", attempts: 1, status: "retrying", retryAt: null }]);
  });

  test.each([["finished", "recovered"], ["stopped", "stopped"], ["failed", "failed"]])("a run that is %s ends them", (status, shown) => {
    const session = fold(EMPTY_SESSION, [...started, ...attempts(2), run(10, status, 3, { reason: "gave up" })]);

    expect(only(session, "failure")).toMatchObject([{ status: shown, retryAt: null }]);
  });

  test("a run that another worker continues has a notice, and no failure", () => {
    const session = fold(EMPTY_SESSION, [...started, run(2, "restarted", 2)]);

    expect(session.items).toMatchObject([{ kind: "notice", text: "The worker stopped. Another worker continued after the last saved step." }]);
  });

  test("a failed run whose message an administrator retries is not taken over", () => {
    const again = [run(2, "failed", 1, { reason: "x" }), run(3, "restarted", 1), run(4, "failed", 1, { reason: "x" })];

    const session = fold(EMPTY_SESSION, [...started, ...again]);

    expect(session.items).toMatchObject([{ kind: "failure", status: "failed", attempts: 2 }, { kind: "notice", text: "Retried." }]);
  });

  test("an answer that does not match its schema is replaced by a notice", () => {
    const token = (seq: number, message: string, text: string) =>
      event(seq, "token", { message_id: message, token_seq: 0, role: "assistant", text, data: { run_id: "run-1", attempt: 1 } });
    const mismatch = run(3, "restarted", 1, { reason: "output mismatch: $.total: 'x' is not of type 'number'", message_id: "r1/0" });
    const session = fold(EMPTY_SESSION, [...started, token(2, "r1/0", "seven"), mismatch, token(4, "r1/1", "7")]);

    expect(only(session, "answer").map((item) => item.text)).toEqual(["7"]);
    expect(only(session, "notice").map((item) => item.text)).toEqual(["The answer did not match its schema. The agent was asked again."]);
  });

  test("a compaction is a notice that holds the summary", () => {
    const compacted = event(2, "compacted", { reason: "size", data: { run_id: "run-1", summary: "Ann wants tea.", tokens_before: 9000, tokens_after: 4000 } });
    const failed = event(3, "compacted", { reason: "size", data: { run_id: "run-1", tokens_before: 9000, tokens_after: 4000 } });

    const session = fold(EMPTY_SESSION, [...started, compacted, failed]);

    expect(only(session, "notice")).toMatchObject([
      { tone: "plain", detail: "About 9,000 tokens, now 4,000.", folded: "Ann wants tea." },
      { tone: "warning", folded: null },
    ]);
  });

  test("a run that is restarted for another reason says that reason", () => {
    const shortened = run(2, "restarted", 1, { reason: "history shortened", data: { history_left_out: 3 } });
    const retried = [run(3, "failed", 1, { reason: "x" }), run(4, "restarted", 1, { reason: "retried by user:ann" })];

    const session = fold(EMPTY_SESSION, [...started, shortened, ...retried]);

    expect(only(session, "notice").map((item) => item.text)).toEqual(["The conversation is too long for the model. The oldest 3 runs were left out.", "Retried by ann."]);
    expect(only(session, "failure")).toMatchObject([{ status: "retrying", attempts: 1, retryOf: null }]);
  });
});

describe("tokens", () => {
  const token = (seq: number, piece: number, text: string, attempt = 1) =>
    event(seq, "token", { message_id: "run-1/0", token_seq: piece, text, data: { run_id: "run-1", attempt } });
  const answer = (session: SessionState): AnswerItem | undefined => only(session, "answer")[0];

  test("tokens of a new attempt replace those of the previous one; late tokens of the old attempt are ignored", () => {
    const session = fold(EMPTY_SESSION, [token(1, 0, "one "), token(2, 1, "two "), token(3, 0, "uno ", 2), token(4, 2, "three ", 1), token(5, 1, "dos ", 2)]);

    expect(answer(session)?.text).toBe("uno dos ");
  });

  test("the recorded text replaces the streamed tokens", () => {
    const end = event(3, "message", { message_id: "run-1/0", role: "assistant", text: "whole", data: { run_id: "run-1" } });
    const session = fold(EMPTY_SESSION, [token(1, 0, "ha"), token(2, 1, "lf"), end, token(4, 2, "late")]);

    expect(answer(session)).toMatchObject({ text: "whole", streaming: false });
  });

  test("a session without new events is the same object", () => {
    const session = fold(EMPTY_SESSION, [token(1, 0, "a")]);

    expect(fold(session, [token(1, 0, "a")])).toBe(session);
  });
});

describe("steering", () => {
  const users = (session: SessionState): UserItem[] => only(session, "user");
  const waiting = (session: SessionState): boolean[] =>
    rowsOf(session, [], new Map()).flatMap((row) => (row.kind === "item" && row.item.kind === "user" ? [row.state.receipt === "waiting"] : []));

  test("a message sent during a run is marked as waiting until its receipt arrives", () => {
    const events = recordedEvents("steered");
    const receipt = events.findIndex((one) => one.type === "message_received");
    const before = fold(EMPTY_SESSION, events.slice(0, receipt));
    const after = fold(before, events.slice(receipt, receipt + 1));

    expect(waiting(before)).toEqual([false, true]);
    expect(waiting(after)).toEqual([false, false]);
    expect(users(after)[1]).toMatchObject({ text: "in Celsius", steer: true, clientId: "k2", runId: null });
    expect(users(after)[1]?.seenAt).not.toBeNull();
  });

  test("a steer that no run has read says so", () => {
    const steer = event(1, "message", { message_id: "m1", role: "user", text: "shorter", data: { steer: true } });

    const rows = rowsOf(fold(EMPTY_SESSION, [steer]), [], new Map());

    expect(rows).toMatchObject([{ state: { receipt: "unconfirmed" } }]);
  });

  test("a message that comes too late for a run is answered by the next run, without a receipt of the first", () => {
    const last = users(fold(EMPTY_SESSION, recordedEvents("steered"))).at(-1);

    expect(last).toMatchObject({ text: "and in Bergen?", seenAt: null });
    expect(last?.runId).not.toBeNull();
  });

  test("a steering message from an agent is shown from its receipt alone", () => {
    const message = { id: "e1", source: "agent:sales", seq: 3, outcome: "seen", text: "they are in a hurry" };
    const session = fold(EMPTY_SESSION, [event(1, "message_received", { data: { run_id: "r1", turn: 1, messages: [message] } })]);

    expect(users(session)[0]).toMatchObject({ sender: "agent:sales", text: "they are in a hurry", steer: true });
  });

  test("the receipt of a stop adds no item", () => {
    const session = fold(EMPTY_SESSION, [event(1, "message_received", { data: { messages: [{ id: "c1", outcome: "stopped", text: "stop" }] } })]);

    expect(session.items).toEqual([]);
  });
});

describe("approvals", () => {
  const events = recordedEvents("approvals");
  const statuses = (session: SessionState): string[] => only(session, "approval").map((item) => item.status);
  const after = (name: string, nth: number): SessionState => {
    const places = events.flatMap((one, place) => (one.type === "approval" && one.data["status"] === name ? [place] : []));
    return fold(EMPTY_SESSION, events.slice(0, (places[nth] ?? -1) + 1));
  };

  test("a pending approval is one item with arguments and expiry, and the run is paused", () => {
    const session = after("requested", 0);
    const [item] = only(session, "approval");
    const run = activeRun(session);

    expect(item).toMatchObject({ tool: "refund", args: { order: "7" }, agent: "general", status: "pending", decidedBy: null });
    expect(item?.expiresAt).toBeGreaterThan(item?.at ?? 0);
    expect(run !== null && isAwaitingApproval(session, run)).toBe(true);
    expect(workState(session)).toBe("awaiting_approval");
    expect(rowsOf(session, [], new Map()).map((row) => row.kind)).not.toContain("working");
  });

  test("the same item shows who decided and why, and the run resumes", () => {
    const [first, second] = only(after("rejected", 0), "approval");

    expect(first).toMatchObject({ status: "approved", decidedBy: "user:local", reason: null });
    expect(second).toMatchObject({ status: "rejected", decidedBy: "user:local", reason: "too dear", args: { order: "8" } });
    expect(second?.decidedAt).not.toBeNull();
    expect(workState(after("approved", 0))).toBe("working");
  });

  test("a run that resumes after a decision counts neither as taken over nor as a new attempt", () => {
    const session = fold(EMPTY_SESSION, events);

    expect(session.runs.map((run) => run.attempt)).toEqual([1, 1, 1]);
    expect(only(session, "notice").map((item) => item.text)).toEqual(["Stopped."]);
  });

  test("a stopped run leaves no approval pending", () => {
    expect(statuses(fold(EMPTY_SESSION, events))).toEqual(["approved", "rejected", "stopped"]);
  });

  test("a run with one of two approvals decided is still paused", () => {
    const request = (seq: number, id: string, status: string) =>
      event(seq, "approval", { data: { run_id: "r1", turn: 0, tool_call_id: id, name: "refund", status } });
    const started = event(1, "run", { data: { run_id: "r1", status: "started" } });
    const session = fold(EMPTY_SESSION, [started, request(2, "c1", "requested"), request(3, "c2", "requested"), request(4, "c2", "approved")]);

    expect(statuses(session)).toEqual(["pending", "approved"]);
    expect(rowsOf(session, [], new Map()).map((row) => row.kind)).toEqual(["item", "item"]);
  });

  test("an approval without a decision expires", () => {
    const data = { run_id: "r1", turn: 0, tool_call_id: "c1", name: "refund", status: "expired", decided_by: "system" };

    expect(statuses(fold(after("requested", 0), [event(1000, "approval", { data })]))).toEqual(["pending", "expired"]);
  });
});

describe("subagents", () => {
  test("a started subagent is an item with its task and its conversation", () => {
    const [item] = only(fold(EMPTY_SESSION, recordedEvents("subagent")), "subagent");

    expect(item).toMatchObject({ name: "support", agent: "general", task: "refund order 7" });
    expect(item?.id).toMatch(/^s1~support-[0-9a-f]{8}$/);
    expect(parentConversation(item?.id ?? "")).toEqual({ id: "s1", name: "support" });
  });

  test("the state of a subagent comes from its own events", () => {
    const events = recordedEvents("subagent_child");
    const begun = events.findIndex((one) => one.type === "run") + 1;

    expect(workState(EMPTY_SESSION)).toBe("waiting");
    expect(workState(fold(EMPTY_SESSION, events.slice(0, begun)))).toBe("working");
    expect(workState(fold(EMPTY_SESSION, events))).toBe("awaiting_approval");
    expect(workState(fold(EMPTY_SESSION, recordedEvents("failed")))).toBe("failed");
    expect(lastAnswer(fold(EMPTY_SESSION, recordedEvents("tool")))?.text).toContain("Oslo");
  });

  test("an id of another form is not that of a subagent", () => {
    expect(["c-12345678", "a~b", "~x-12345678"].map(parentConversation)).toEqual([null, null, null]);
  });
});

describe("attachments", () => {
  test("carry their hash and the seq of the event that shows them", () => {
    const file = { name: "note.txt", sha256: "ab".repeat(32), media_type: "text/plain", bytes: 6 };
    const session = fold(EMPTY_SESSION, [event(7, "message", { role: "assistant", text: "", data: { attachments: [file, null] } })]);

    expect(only(session, "answer")[0]?.attachments).toEqual([{ fileId: null, sha256: "ab".repeat(32), seq: 7, name: "note.txt", mediaType: "text/plain", bytes: 6 }]);
  });
});

describe("Python blocks", () => {
  const blocks = (name: string): ToolItem[] => only(fold(EMPTY_SESSION, recordedEvents(name)), "tool").filter((item) => item.name === "run_python");

  test("a successful block shows its code, its output and what was sent, in one item", () => {
    const [block, ...others] = blocks("block");

    expect(others).toEqual([]);
    expect(block).toMatchObject({ status: "success", block: { held: 2, sent: 2, ok: true, status: "Messages: 2 sent" } });
    expect(block?.block?.code).toContain("chat_send");
    expect(block?.block?.output).toBe("told");
  });

  test("a failed block shows that its messages were not sent", () => {
    const [block] = blocks("block_that_fails");

    expect(block).toMatchObject({ status: "error", block: { held: 2, sent: 0, ok: false, status: "Messages: 2 NOT sent (script failed)" } });
  });

  test("a block with a failed message names that message", () => {
    const [block] = blocks("block_in_part");

    expect(block?.block).toMatchObject({ status: "Messages: 1 sent, 1 failed", failures: ["friend_send to @bob: not friends"], output: "told" });
  });
});

test("events of unknown types are counted and otherwise ignored", () => {
  const session = fold(EMPTY_SESSION, [event(1, "something_new", { data: { deep: [1, { x: null }] } })]);

  expect(session).toMatchObject({ cursor: 1, eventCount: 1, items: [] });
});

describe("a replaced answer", () => {
  const question = (seq: number, id: string, text: string): SessionEvent =>
    event(seq, "message", { role: "user", message_id: id, text, final: true, data: { sender: "user:ann" } });
  const run = (seq: number, name: string, status: string): SessionEvent => event(seq, "run", { data: { run_id: `run-${name}`, envelope_id: name, status } });
  const answer = (seq: number, name: string, text: string): SessionEvent =>
    event(seq, "message", { role: "assistant", message_id: `run-${name}/0`, text, final: true, data: { run_id: `run-${name}`, reply_to: name } });
  const before = [question(1, "m1", "hello"), run(2, "m1", "started"), answer(3, "m1", "one"), run(4, "m1", "finished")];
  const superseded = (sends: unknown[] = []): SessionEvent =>
    event(5, "superseded", { data: { run_id: "run-m1", envelope_id: "m1", replaced_by: "m2", messages: ["m1"], sends } });
  const after = [question(6, "m2", "hello"), run(7, "m2", "started"), answer(8, "m2", "two"), run(9, "m2", "finished")];

  test("leaves the log with its message, and the new answer takes its place", () => {
    const session = fold(EMPTY_SESSION, [...before, superseded(), ...after]);

    expect(session.items.map((item) => ("text" in item ? item.text : item.kind))).toEqual(["hello", "two"]);
    expect(session.items.every((item, place) => session.itemIndex.get(item.key) === place)).toBe(true);
    expect(session.runs.map((one) => one.status)).toEqual(["finished", "finished"]);
  });

  test("says what it had sent", () => {
    const session = fold(EMPTY_SESSION, [...before, superseded([{ id: "s1", tool: "message_agent" }]), ...after]);

    expect(kinds(session)).toEqual(["notice", "user", "answer"]);
    expect(only(session, "notice")[0]).toMatchObject({ text: expect.stringContaining("had sent stays sent"), detail: "message_agent" });
  });

  test("is the same in one batch and in many", () => {
    const events = [...before, superseded(), ...after];

    expect(events.reduce((state, one) => fold(state, [one]), EMPTY_SESSION)).toEqual(fold(EMPTY_SESSION, events));
  });

  test("can be asked for at the last message and answer only, while nothing is under way", () => {
    const replaceable = (events: SessionEvent[]): string[] =>
      rowsOf(fold(EMPTY_SESSION, events), [], new Map()).flatMap((row) => (row.kind === "item" && row.state.replaceable && "text" in row.item ? [row.item.text] : []));
    const next = [question(5, "m3", "more"), run(6, "m3", "started"), answer(7, "m3", "three"), run(8, "m3", "finished")];

    expect(replaceable(before)).toEqual(["hello", "one"]);
    expect(replaceable([...before, ...next.slice(0, 1)])).toEqual([]);
    expect(replaceable([...before, ...next.slice(0, 3)])).toEqual([]);
    expect(replaceable([...before, ...next])).toEqual(["more", "three"]);
  });
});
