// A subagent: its task, its state, its last answer, and a link to its conversation.
import type { ReactElement } from "react";
import { EMPTY_SESSION, lastAnswer, type SessionState, type SubagentItem, type WorkState, workState } from "../fold/state";
import { Observable, useSelector } from "../store/observable";
import { conversationHash } from "../store/route";
import { Avatar, Badge, Spinner } from "../ui/common";
import { useApp, useIsStale } from "../ui/context";
import { Icon } from "../ui/icons";

const NO_SESSION = new Observable<SessionState>(EMPTY_SESSION);
const PREVIEW_MAX_CHARS = 280;
const TASK_MAX_CHARS = 1_000; // three lines are visible

export function SubagentCard({ item }: { item: SubagentItem }): ReactElement {
  const session = useApp().findConversation(item.id)?.session ?? NO_SESSION;
  const isLoaded = useSelector(session, (now) => now.eventCount > 0);
  const state = useSelector(session, workState);
  const needsPerson = state === "awaiting_approval" || state === "awaiting_budget";
  const stale = useIsStale();
  const answer = useSelector(session, (now) => lastAnswer(now)?.text ?? "");
  return (
    <div className="pb-4 pl-9.5">
      <section aria-label={`Subagent ${item.name}`} className={`rounded-xl border px-4 py-3 ${needsPerson ? "border-accent bg-accent-soft" : "border-line bg-surface"}`}>
        <div className="flex flex-wrap items-center gap-2 text-sm">
          <Avatar name={item.name} size={22} />
          <span className="min-w-0 flex-1"><strong className="font-semibold">{item.agent ?? "An agent"}</strong> started <strong className="font-semibold">{item.name}</strong></span>
          {isLoaded && <StateBadge state={state} stale={stale} />}
        </div>
        <p className="mt-1.5 line-clamp-3 text-sm wrap-anywhere whitespace-pre-wrap">{item.task.slice(0, TASK_MAX_CHARS)}</p>
        {answer !== "" && <p className="mt-2 line-clamp-3 rounded-lg bg-sunken px-3 py-2 text-sm text-muted wrap-anywhere">{answer.slice(0, PREVIEW_MAX_CHARS)}</p>}
        <a href={conversationHash(item.id)} className="mt-2 inline-flex items-center gap-1 text-sm font-medium text-accent-ink underline-offset-2 hover:underline">
          {needsPerson ? "Open to decide" : "Open conversation"} <Icon name="chevron" size={14} />
        </a>
      </section>
    </div>
  );
}

const STATE_BADGES: Record<Exclude<WorkState, "working">, { tone: "plain" | "strong" | "good" | "bad"; label: string }> = {
  waiting: { tone: "plain", label: "Waiting for a worker" },
  awaiting_approval: { tone: "strong", label: "Needs approval" },
  awaiting_budget: { tone: "strong", label: "Needs budget" },
  finished: { tone: "good", label: "Done" },
  failed: { tone: "bad", label: "Failed" },
  stopped: { tone: "plain", label: "Stopped" },
};

function StateBadge({ state, stale }: { state: WorkState; stale: boolean }): ReactElement {
  if (state === "working" && stale) return <Badge tone="warn">Not complete, no connection</Badge>;
  if (state === "working") return <Badge tone="accent"><Spinner size={11} /> Working</Badge>;
  const { tone, label } = STATE_BADGES[state];
  return <Badge tone={tone}>{label}</Badge>;
}
