import { readFileSync } from "node:fs";
import type { Event } from "../src/api/shapes";

/** A log that was recorded from the real server; `tests/support/record_page_logs.py` records them anew. */
export function log(name: string): Event[] {
  const text = readFileSync(new URL(`./logs/${name}.jsonl`, import.meta.url), "utf8");
  return text.trim().split("\n").map((line) => JSON.parse(line) as Event);
}

/** An event of a kind that other parts of the server write. */
export function event(seq: number, type: string, fields: Partial<Event> = {}): Event {
  return {
    session_id: "s1", seq, type, message_id: null, token_seq: null, role: null, agent_id: "general", text: null,
    final: null, reason: null, data: {}, timestamp_ms: 1_794_800_000_000 + seq, ...fields,
  };
}
