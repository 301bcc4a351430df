// The conversations of the subagents that the shown conversation has started. They are followed to show their state.
import type { SessionState } from "../fold/state";
import { Conversation } from "./conversation";

export const FOLLOWED_MAX = 8; // the latest of one conversation; older ones can be opened

const SUBAGENT_ID = /^(.+)~([^~]+)-[0-9a-f]{8}$/; // parent conversation, `~`, the subagent's name, `-`, eight hex digits

/** The parent conversation and the name of a subagent, from its conversation id; null if the id is not a subagent's. */
export function parentConversation(id: string): { id: string; name: string } | null {
  const [, parent, name] = SUBAGENT_ID.exec(id) ?? [];
  return parent === undefined || name === undefined ? null : { id: parent, name };
}

export class SubagentConversations {
  private readonly conversations = new Map<string, Conversation>();

  get(id: string): Conversation | undefined {
    return this.conversations.get(id);
  }

  /** Follow the subagents of this session. Returns whether the followed ones have changed. */
  sync(session: SessionState, findOpen: (id: string) => Conversation | undefined): boolean {
    const wanted = session.items.flatMap((item) => (item.kind === "subagent" ? [item.id] : [])).slice(-FOLLOWED_MAX);
    const before = [...this.conversations.keys()];
    for (const id of before) if (!wanted.includes(id)) this.conversations.delete(id);
    for (const id of wanted) if (!this.conversations.has(id)) this.conversations.set(id, findOpen(id) ?? new Conversation(id, () => {}));
    return before.join() !== [...this.conversations.keys()].join();
  }

  cursors(): Record<string, number> {
    return Object.fromEntries([...this.conversations].map(([id, one]) => [id, one.cursor]));
  }
}
