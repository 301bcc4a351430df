// Another agent at work for this conversation's: what it was asked, how it stands, and the way to its own conversation.
import type { ReactElement } from "react";
import { EMPTY, lastAnswer, type Session, type SubagentItem, type WorkState, workState } from "../fold/state";
import { hashOf } from "../store/address";
import { Cell, usePart } from "../store/cell";
import { useApp } from "../ui/context";
import { Icon } from "../ui/icons";
import { Avatar, Badge, Spinner } from "../ui/parts";

const NO_SESSION = new Cell<Session>(EMPTY);
const GIST_MAX_CHARS = 280;

export function SubagentCard({ item }: { item: SubagentItem }): ReactElement {
  const session = useApp().find(item.id)?.session ?? NO_SESSION;
  const known = usePart(session, (now) => now.events > 0);
  const state = usePart(session, workState);
  const said = usePart(session, (now) => lastAnswer(now)?.text ?? "");
  return (
    <div className="pb-4 pl-9.5">
      <section aria-label={`Subagent ${item.name}`} className={`rounded-xl border px-4 py-3 ${state === "asking" ? "border-accent bg-accent-soft" : "border-line bg-surface"}`}>
        <div className="flex flex-wrap items-center gap-2 text-sm">
          <Avatar name={item.name} size={22} />
          <span className="min-w-0 flex-1"><strong className="font-semibold">{item.agent ?? "An agent"}</strong> has started <strong className="font-semibold">{item.name}</strong></span>
          {known && <StateMark state={state} />}
        </div>
        <p className="mt-1.5 line-clamp-3 text-sm wrap-anywhere whitespace-pre-wrap">{item.task}</p>
        {said !== "" && <p className="mt-2 line-clamp-3 rounded-lg bg-sunken px-3 py-2 text-sm text-muted wrap-anywhere">{said.slice(0, GIST_MAX_CHARS)}</p>}
        <a href={hashOf(item.id)} className="mt-2 inline-flex items-center gap-1 text-sm font-medium text-accent-ink underline-offset-2 hover:underline">
          {state === "asking" ? "Open it to decide" : "Open its conversation"} <Icon name="chevron" size={14} />
        </a>
      </section>
    </div>
  );
}

const MARKS: Record<Exclude<WorkState, "working">, { tone: "plain" | "strong" | "good" | "bad"; words: string }> = {
  waiting: { tone: "plain", words: "Waiting for a worker" },
  asking: { tone: "strong", words: "Needs a decision" },
  finished: { tone: "good", words: "Done" },
  failed: { tone: "bad", words: "Failed" },
  stopped: { tone: "plain", words: "Stopped" },
};

function StateMark({ state }: { state: WorkState }): ReactElement {
  if (state === "working") return <Badge tone="accent"><Spinner size={11} /> Working</Badge>;
  const { tone, words } = MARKS[state];
  return <Badge tone={tone}>{words}</Badge>;
}
