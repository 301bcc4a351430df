// The conversations of subagents that the shown conversation has started: followed with it, for how they stand.
import type { Session } from "../fold/state";
import { Conversation } from "./conversation";

export const FOLLOWED_MAX = 8; // of one conversation, the latest; older ones can be opened

const SUBAGENT = /^(.+)~([^~]+)-[0-9a-f]{8}$/; // the conversation it was started in, `~`, its name and eight digits

/** Whose a subagent's conversation is: where it was started, and its name. `null` for one that is nobody's. */
export function parentOf(id: string): { id: string; name: string } | null {
  const [, parent, name] = SUBAGENT.exec(id) ?? [];
  return parent === undefined || name === undefined ? null : { id: parent, name };
}

export class Children {
  private readonly known = new Map<string, Conversation>();

  get(id: string): Conversation | undefined {
    return this.known.get(id);
  }

  /** Whether there are others to follow now than before. */
  follow(session: Session, opened: (id: string) => Conversation | undefined): boolean {
    const wanted = session.items.flatMap((item) => (item.kind === "subagent" ? [item.id] : [])).slice(-FOLLOWED_MAX);
    const before = [...this.known.keys()];
    for (const id of before) if (!wanted.includes(id)) this.known.delete(id);
    for (const id of wanted) if (!this.known.has(id)) this.known.set(id, opened(id) ?? new Conversation(id, () => {}));
    return before.join() !== [...this.known.keys()].join();
  }

  cursors(): Record<string, number> {
    return Object.fromEntries([...this.known].map(([id, one]) => [id, one.cursor]));
  }
}
