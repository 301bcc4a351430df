import { readFileSync } from "node:fs";
import type { SessionEvent } from "../src/api/types";

/** Events recorded from the real server; `tests/support/record_page_logs.py` records them again. */
export function recordedEvents(name: string): SessionEvent[] {
  const text = readFileSync(new URL(`./logs/${name}.jsonl`, import.meta.url), "utf8");
  return text.trim().split("\n").map((line) => JSON.parse(line) as SessionEvent);
}

/** An event with defaults for the fields that a test does not set. */
export function event(seq: number, type: string, fields: Partial<SessionEvent> = {}): SessionEvent {
  return {
    session_id: "s1", seq, type, message_id: null, token_seq: null, role: null, agent_id: "general", text: null,
    final: null, reason: null, data: {}, timestamp_ms: 1_794_800_000_000 + seq, ...fields,
  };
}
