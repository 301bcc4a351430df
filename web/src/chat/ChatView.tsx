// The middle of the page: a conversation, or the beginning of one.
import type { ReactElement } from "react";
import type { Session } from "../fold/state";
import { EMPTY, isAwaited, isPaused, runUnderWay } from "../fold/state";
import { go, hashOf } from "../store/address";
import { Cell, useCell } from "../store/cell";
import { parentOf } from "../store/children";
import type { Conversation, Standing } from "../store/conversation";
import { useApp } from "../ui/context";
import { Icon } from "../ui/icons";
import { Button, Spinner } from "../ui/parts";
import { Announcer } from "./Announcer";
import { Composer } from "./Composer";
import { FirstRun } from "./FirstRun";
import { Log } from "./Log";

const NEW = new Cell<Standing>("new");
const NO_SESSION = new Cell<Session>(EMPTY);

export function ChatView(): ReactElement {
  const app = useApp();
  const conversation = useCell(app.current);
  const session = useCell(conversation?.session ?? NO_SESSION);
  const standing = useCell(conversation?.standing ?? NEW);
  const team = useCell(app.team);
  const agent = session.agent ?? app.sessions.get()?.get(conversation?.id ?? "")?.active_agent_id ?? team?.root ?? null;
  if (standing === "unknown" || standing === "deleted") return <Gone standing={standing} />;
  const run = runUnderWay(session);
  return (
    <div className="flex min-h-0 min-w-0 flex-1 flex-col">
      {conversation !== null && <Parent id={conversation.id} />}
      {conversation === null ? <FirstRun /> : <Shown conversation={conversation} session={session} standing={standing} />}
      <Composer run={run} paused={run !== null && isPaused(session, run)} awaited={isAwaited(session)} agent={agent} />
    </div>
  );
}

/** The way back from a subagent's conversation, which no list shows. */
function Parent({ id }: { id: string }): ReactElement | null {
  const parent = parentOf(id);
  if (parent === null) return null;
  return (
    <p className="flex items-center gap-2 border-b border-line bg-sunken px-4 py-1.5 text-sm text-muted sm:px-6">
      <Icon name="people" size={15} /> <span className="min-w-0 flex-1 truncate"><strong className="font-medium text-ink">{parent.name}</strong> works here for another.</span>
      <a href={hashOf(parent.id)} className="shrink-0 font-medium text-accent-ink underline-offset-2 hover:underline">Back to who started it</a>
    </p>
  );
}

function Shown({ conversation, session, standing }: { conversation: Conversation; session: Session; standing: Standing }): ReactElement {
  const app = useApp();
  const outgoing = useCell(app.sender.list).filter((one) => one.sessionId === conversation.id);
  if (standing === "loading" && session.events === 0 && outgoing.length === 0) {
    return <div role="status" className="flex flex-1 items-center justify-center gap-2 text-sm text-muted"><Spinner /> Opening…</div>;
  }
  return (
    <>
      <h2 className="sr-only">Conversation</h2>
      <Log key={conversation.id} session={session} outgoing={outgoing} />
      <Announcer key={`said-${conversation.id}`} session={session} fresh={standing === "new"} />
    </>
  );
}

function Gone({ standing }: { standing: "unknown" | "deleted" }): ReactElement {
  const deleted = standing === "deleted";
  return (
    <div className="flex flex-1 flex-col items-center justify-center gap-3 px-6 text-center">
      <h2 className="text-lg font-semibold">{deleted ? "This conversation was deleted" : "There is no such conversation"}</h2>
      <p className="max-w-sm text-muted">{deleted ? "Its text is gone, here and on the server." : "The link may be old, or the conversation belongs to somebody else."}</p>
      <Button onClick={() => go(null)}>Begin a new one</Button>
    </div>
  );
}
