// Says aloud what one who sees would notice: who is at work, the finished answer, what needs a decision.
import { type ReactElement, useEffect, useRef, useState } from "react";
import { type Item, runUnderWay, type Session } from "../fold/state";

const SPOKEN_MAX_CHARS = 600;
const KEPT = 4; // lines that stay, so that one that follows at once does not take another's place
const LOOKED_AT = 8; // of the last items: what is older has been said

/** `fresh`: the conversation begins here, so that all of it is news. */
export function Announcer({ session, fresh }: { session: Session; fresh: boolean }): ReactElement {
  const [words, setWords] = useState<readonly Line[]>([]);
  const said = useRef<Set<string> | null>(fresh ? new Set() : null);
  useEffect(() => {
    if (session.events === 0) return;
    const before = said.current;
    const lines = session.items.slice(-LOOKED_AT).flatMap(spoken);
    const run = runUnderWay(session);
    if (run !== null) lines.push({ key: run.id, words: `${run.agent ?? "The agent"} is at work.` });
    said.current = new Set([...(before ?? []), ...lines.map((line) => line.key)]);
    if (before === null) return; // what was there already can be read
    const news = lines.filter((line) => !before.has(line.key));
    if (news.length > 0) setWords((kept) => [...kept, ...news].slice(-KEPT));
  }, [session]);
  return (
    <div aria-live="polite" aria-relevant="additions" className="sr-only">
      {words.map((line) => <p key={line.key}>{line.words}</p>)}
    </div>
  );
}

interface Line {
  key: string;
  words: string;
}

function spoken(item: Item): Line[] {
  const { key } = item;
  switch (item.kind) {
    case "answer": return item.streaming ? [] : [{ key, words: `${item.agent ?? "Agent"}: ${item.text.slice(0, SPOKEN_MAX_CHARS)}` }];
    case "handoff": return [{ key, words: `${item.to} takes over.` }];
    case "approval": return item.status === "pending"
      ? [{ key, words: `${item.agent ?? "An agent"} asks to run ${item.tool}.` }]
      : [{ key: `${key}/${item.status}`, words: `${item.tool}: ${item.status}.` }];
    case "subagent": return [{ key, words: `${item.agent ?? "An agent"} has started ${item.name}.` }];
    case "notice": return [{ key, words: item.text }];
    case "tool": return item.status === "error" ? [{ key, words: `${item.name} failed.` }] : [];
    case "user": return [];
  }
}
