import { describe, expect, test } from "vitest";
import { rowsOf } from "../src/chat/rows";
import { fold } from "../src/fold/session";
import { type AnswerItem, EMPTY, isPaused, type Item, lastAnswer, runUnderWay, type Session, type ToolItem, type UserItem, workState } from "../src/fold/state";
import { parentOf } from "../src/store/children";
import { event, log } from "./logs";

const kinds = (session: Session): string[] => session.items.map((item) => item.kind);
const only = <K extends Item["kind"]>(session: Session, kind: K): Extract<Item, { kind: K }>[] =>
  session.items.filter((item): item is Extract<Item, { kind: K }> => item.kind === kind);
const LOGS = [
  "tool", "handoff", "tool_that_fails", "by_hand", "stopped", "steered", "block", "block_that_fails", "block_in_part", "failed", "approvals", "subagent",
];

describe("recorded logs", () => {
  test("a tool run shows the question, the tool with its result, and the answer with its usage", () => {
    const session = fold(EMPTY, log("tool"));

    expect(kinds(session)).toEqual(["user", "tool", "answer"]);
    expect(only(session, "tool")[0]).toMatchObject({ name: "weather", args: { city: "Oslo" }, status: "success", byHand: false });
    expect(only(session, "answer")[0]).toMatchObject({ agent: "general", streaming: false, usage: { requests: 2 } });
    expect(session.runs[0]?.spans.map((span) => span.name)).toEqual(["model", "weather", "model"]);
    expect(session.clientIds).toEqual(new Set(["k1"]));
    expect(runUnderWay(session)).toBeNull();
  });

  test("a handoff shows who goes on and why, and who is active then", () => {
    const session = fold(EMPTY, log("handoff"));

    expect(only(session, "handoff").map(({ from, to, reason }) => [from, to, reason])).toEqual([
      ["general", "sales", null],
      ["sales", "support", "manual_switch"],
    ]);
    expect(session.agent).toBe("support");
    expect(only(session, "answer").map((item) => item.agent)).toEqual(["sales", "sales"]);
  });

  test("a tool that fails says why", () => {
    const [tool] = only(fold(EMPTY, log("tool_that_fails")), "tool");

    expect(tool?.status).toBe("error");
    expect(tool?.error).toContain("ArgumentsError");
  });

  test("a tool run by hand is no part of the talk", () => {
    const session = fold(EMPTY, log("by_hand"));

    expect(kinds(session)).toEqual(["tool"]);
    expect(only(session, "tool")[0]).toMatchObject({ byHand: true, status: "success" });
  });

  test("a stopped answer keeps what was said, and can be tried again until it was", () => {
    const events = log("stopped");
    const end = events.findIndex((one) => one.data["status"] === "stopped") + 1;
    const stopped = fold(EMPTY, events.slice(0, end));
    const tried = fold(stopped, events.slice(end));
    const retryable = (session: Session): boolean[] =>
      rowsOf(session, [], new Map()).flatMap((row) => (row.kind === "item" && row.item.kind === "notice" ? [row.state.retryable] : []));

    expect(only(stopped, "answer")[0]).toMatchObject({ streaming: false, text: "held: one two " });
    expect(retryable(stopped)).toEqual([true]);
    expect(retryable(tried)).toEqual([false]);
    expect(only(tried, "answer").at(-1)?.text).toBe("held: one two three four five six");
  });

  test("a failed run is told once, with its reason and a way to try again", () => {
    const notices = only(fold(EMPTY, log("failed")), "notice");

    expect(notices).toHaveLength(1);
    expect(notices[0]).toMatchObject({ tone: "error", detail: "ModelRefused: told to fail" });
    expect(notices[0]?.retryOf).toMatch(/^msg-/);
  });

  test.each(LOGS)("%s is the same in one batch, in single events, and with repeats", (name) => {
    const events = log(name);
    const whole = fold(EMPTY, events);
    const single = events.reduce((session, one) => fold(session, [one]), EMPTY);
    const repeated = fold(fold(whole, events), events.slice(3));

    expect(single).toEqual(whole);
    expect(repeated).toBe(whole);
  });

  test.each(LOGS)("%s leaves nothing open at its end", (name) => {
    const session = fold(EMPTY, log(name));

    expect(only(session, "answer").filter((item) => item.streaming)).toEqual([]);
    expect(only(session, "tool").filter((item) => item.status === "running")).toEqual([]);
    expect(session.runs.filter((run) => run.status === "running")).toEqual([]);
  });
});

describe("tokens", () => {
  const token = (seq: number, piece: number, text: string, attempt = 1) =>
    event(seq, "token", { message_id: "run-1/0", token_seq: piece, text, data: { run_id: "run-1", attempt } });
  const answer = (session: Session): AnswerItem | undefined => only(session, "answer")[0];

  test("drafts of a new attempt replace those of the one before; late ones of the old are passed over", () => {
    const session = fold(EMPTY, [token(1, 0, "one "), token(2, 1, "two "), token(3, 0, "uno ", 2), token(4, 2, "three ", 1), token(5, 1, "dos ", 2)]);

    expect(answer(session)?.text).toBe("uno dos ");
  });

  test("the text that was recorded stands, whatever the drafts were", () => {
    const end = event(3, "message", { message_id: "run-1/0", role: "assistant", text: "whole", data: { run_id: "run-1" } });
    const session = fold(EMPTY, [token(1, 0, "ha"), token(2, 1, "lf"), end, token(4, 2, "late")]);

    expect(answer(session)).toMatchObject({ text: "whole", streaming: false });
  });

  test("a session that does not change is the same object", () => {
    const session = fold(EMPTY, [token(1, 0, "a")]);

    expect(fold(session, [token(1, 0, "a")])).toBe(session);
  });
});

describe("steering", () => {
  const users = (session: Session): UserItem[] => only(session, "user");
  const waits = (session: Session): boolean[] =>
    rowsOf(session, [], new Map()).flatMap((row) => (row.kind === "item" && row.item.kind === "user" ? [row.state.waiting] : []));

  test("what is said while a run is under way waits until the receipt says that it was seen", () => {
    const events = log("steered");
    const receipt = events.findIndex((one) => one.type === "message_received");
    const before = fold(EMPTY, events.slice(0, receipt));
    const after = fold(before, events.slice(receipt, receipt + 1));

    expect(waits(before)).toEqual([false, true]);
    expect(waits(after)).toEqual([false, false]);
    expect(users(after)[1]).toMatchObject({ text: "in Celsius", steer: true, clientId: "k2", runId: null });
    expect(users(after)[1]?.seenAt).not.toBeNull();
  });

  test("what came too late for the run is answered by the next, and was not seen by the first", () => {
    const last = users(fold(EMPTY, log("steered"))).at(-1);

    expect(last).toMatchObject({ text: "and in Bergen?", seenAt: null });
    expect(last?.runId).not.toBeNull();
  });

  test("what an agent says to another's run is shown though no message told it", () => {
    const message = { id: "e1", source: "agent:sales", seq: 3, outcome: "seen", text: "they are in a hurry" };
    const session = fold(EMPTY, [event(1, "message_received", { data: { run_id: "r1", turn: 1, messages: [message] } })]);

    expect(users(session)[0]).toMatchObject({ sender: "agent:sales", text: "they are in a hurry", steer: true });
  });

  test("the receipt of a stop shows nothing of its own", () => {
    const session = fold(EMPTY, [event(1, "message_received", { data: { messages: [{ id: "c1", outcome: "stopped", text: "stop" }] } })]);

    expect(session.items).toEqual([]);
  });
});

describe("approvals", () => {
  const events = log("approvals");
  const statuses = (session: Session): string[] => only(session, "approval").map((item) => item.status);
  const after = (name: string, nth: number): Session => {
    const places = events.flatMap((one, place) => (one.type === "approval" && one.data["status"] === name ? [place] : []));
    return fold(EMPTY, events.slice(0, (places[nth] ?? -1) + 1));
  };

  test("a call that waits is one card with what it is about and until when, and the run is paused", () => {
    const session = after("requested", 0);
    const [item] = only(session, "approval");
    const run = runUnderWay(session);

    expect(item).toMatchObject({ tool: "refund", args: { order: "7" }, agent: "general", status: "pending", decidedBy: null });
    expect(item?.expiresAt).toBeGreaterThan(item?.at ?? 0);
    expect(run !== null && isPaused(session, run)).toBe(true);
    expect(workState(session)).toBe("asking");
    expect(rowsOf(session, [], new Map()).map((row) => row.kind)).not.toContain("thinking");
  });

  test("the same card says who has decided, and why, and the run goes on", () => {
    const [first, second] = only(after("rejected", 0), "approval");

    expect(first).toMatchObject({ status: "approved", decidedBy: "user:local", reason: null });
    expect(second).toMatchObject({ status: "rejected", decidedBy: "user:local", reason: "too dear", args: { order: "8" } });
    expect(second?.decidedAt).not.toBeNull();
    expect(workState(after("approved", 0))).toBe("working");
  });

  test("a run that goes on after a decision is neither taken over nor tried again", () => {
    const session = fold(EMPTY, events);

    expect(session.runs.map((run) => run.attempt)).toEqual([1, 1, 1]);
    expect(only(session, "notice").map((item) => item.text)).toEqual(["Stopped."]);
  });

  test("a run that is stopped asks nobody any more", () => {
    expect(statuses(fold(EMPTY, events))).toEqual(["approved", "rejected", "stopped"]);
  });

  test("while one of two calls waits the run is not at work", () => {
    const request = (seq: number, id: string, status: string) =>
      event(seq, "approval", { data: { run_id: "r1", turn: 0, tool_call_id: id, name: "refund", status } });
    const started = event(1, "run", { data: { run_id: "r1", status: "started" } });
    const session = fold(EMPTY, [started, request(2, "c1", "requested"), request(3, "c2", "requested"), request(4, "c2", "approved")]);

    expect(statuses(session)).toEqual(["pending", "approved"]);
    expect(rowsOf(session, [], new Map()).map((row) => row.kind)).toEqual(["item", "item"]);
  });

  test("nobody decided in time", () => {
    const data = { run_id: "r1", turn: 0, tool_call_id: "c1", name: "refund", status: "expired", decided_by: "system" };

    expect(statuses(fold(after("requested", 0), [event(1000, "approval", { data })]))).toEqual(["pending", "expired"]);
  });
});

describe("subagents", () => {
  test("one that was started is a card with its task and its conversation", () => {
    const [item] = only(fold(EMPTY, log("subagent")), "subagent");

    expect(item).toMatchObject({ name: "support", agent: "general", task: "refund order 7" });
    expect(item?.id).toMatch(/^s1~support-[0-9a-f]{8}$/);
    expect(parentOf(item?.id ?? "")).toEqual({ id: "s1", name: "support" });
  });

  test("how it stands is told by its own log", () => {
    const events = log("subagent_child");
    const begun = events.findIndex((one) => one.type === "run") + 1;

    expect(workState(EMPTY)).toBe("waiting");
    expect(workState(fold(EMPTY, events.slice(0, begun)))).toBe("working");
    expect(workState(fold(EMPTY, events))).toBe("asking");
    expect(workState(fold(EMPTY, log("failed")))).toBe("failed");
    expect(lastAnswer(fold(EMPTY, log("tool")))?.text).toContain("Oslo");
  });

  test("a conversation of another name is nobody's", () => {
    expect(["c-12345678", "a~b", "~x-12345678"].map(parentOf)).toEqual([null, null, null]);
  });
});

describe("files", () => {
  test("of a message are known by their hash and by the event that shows them", () => {
    const file = { name: "note.txt", sha256: "ab".repeat(32), media_type: "text/plain", bytes: 6 };
    const session = fold(EMPTY, [event(7, "message", { role: "assistant", text: "", data: { attachments: [file, null] } })]);

    expect(only(session, "answer")[0]?.attachments).toEqual([{ sha256: "ab".repeat(32), seq: 7, name: "note.txt", type: "text/plain", bytes: 6 }]);
  });
});

describe("Python blocks", () => {
  const blocks = (name: string): ToolItem[] => only(fold(EMPTY, log(name)), "tool").filter((item) => item.name === "run_python");

  test("one that ends well shows its code, its output and what was sent, on one card", () => {
    const [block, ...others] = blocks("block");

    expect(others).toEqual([]);
    expect(block).toMatchObject({ status: "success", block: { held: 2, sent: 2, ok: true, status: "Messages: 2 sent" } });
    expect(block?.block?.code).toContain("chat_send");
    expect(block?.block?.output).toBe("told");
  });

  test("one that fails says why, and that nothing was sent", () => {
    const [block] = blocks("block_that_fails");

    expect(block).toMatchObject({ status: "error", block: { held: 2, sent: 0, ok: false, status: "Messages: 2 NOT sent (script failed)" } });
  });

  test("one of whose messages some were refused says which", () => {
    const [block] = blocks("block_in_part");

    expect(block?.block).toMatchObject({ status: "Messages: 1 sent, 1 failed", failures: ["friend_send to @bob: not friends"], output: "told" });
  });
});

test("records of kinds that the page does not know are counted and do no harm", () => {
  const session = fold(EMPTY, [event(1, "something_new", { data: { deep: [1, { x: null }] } })]);

  expect(session).toMatchObject({ cursor: 1, events: 1, items: [] });
});
