// The middle of the page: the current conversation, or the start of a new one.
import type { ReactElement } from "react";
import type { SessionState } from "../fold/state";
import { activeRun, EMPTY_SESSION, isAwaitingApproval, isAwaitingBudget, isWaitingForRun } from "../fold/state";
import type { Conversation, ConversationStatus } from "../store/conversation";
import { Observable, useObservable } from "../store/observable";
import { conversationHash, navigate } from "../store/route";
import { parentConversation } from "../store/subagents";
import { Button, Spinner } from "../ui/common";
import { useApp } from "../ui/context";
import { Icon } from "../ui/icons";
import { Announcer } from "./Announcer";
import { Composer } from "./Composer";
import { MessageLog } from "./MessageLog";
import { NewConversation } from "./NewConversation";

const NEW_STATUS = new Observable<ConversationStatus>("new");
const NO_SESSION = new Observable<SessionState>(EMPTY_SESSION);

export function ChatView(): ReactElement {
  const app = useApp();
  const conversation = useObservable(app.current);
  const session = useObservable(conversation?.session ?? NO_SESSION);
  const status = useObservable(conversation?.status ?? NEW_STATUS);
  const team = useObservable(app.team);
  const agent = session.activeAgent ?? app.sessions.get()?.get(conversation?.id ?? "")?.active_agent_id ?? team?.rootAgent ?? null;
  if (status === "unknown" || status === "deleted") return <MissingConversation status={status} />;
  const run = activeRun(session);
  return (
    <div className="flex min-h-0 min-w-0 flex-1 flex-col">
      {conversation !== null && <ParentLink id={conversation.id} />}
      {conversation === null ? <NewConversation /> : <ConversationBody conversation={conversation} session={session} status={status} />}
      <Composer run={run} paused={run !== null && (isAwaitingApproval(session, run) || isAwaitingBudget(session, run))} runPending={isWaitingForRun(session)} agent={agent} />
    </div>
  );
}

/** The link back from a subagent's conversation, which is not in the conversation list. */
function ParentLink({ id }: { id: string }): ReactElement | null {
  const parent = parentConversation(id);
  if (parent === null) return null;
  return (
    <p className="flex items-center gap-2 border-b border-line bg-sunken px-4 py-1.5 text-sm text-muted sm:px-6">
      <Icon name="people" size={15} /> <span className="min-w-0 flex-1 truncate">Conversation of the subagent <strong className="font-medium text-ink">{parent.name}</strong></span>
      <a href={conversationHash(parent.id)} className="shrink-0 font-medium text-accent-ink underline-offset-2 hover:underline">Back to the main conversation</a>
    </p>
  );
}

function ConversationBody({ conversation, session, status }: { conversation: Conversation; session: SessionState; status: ConversationStatus }): ReactElement {
  const app = useApp();
  const pending = useObservable(app.sender.pending).filter((one) => one.sessionId === conversation.id);
  if (status === "loading" && session.eventCount === 0 && pending.length === 0) {
    return <div role="status" className="flex flex-1 items-center justify-center gap-2 text-sm text-muted"><Spinner /> Loading…</div>;
  }
  return (
    <>
      <h2 className="sr-only">Conversation</h2>
      <MessageLog key={conversation.id} session={session} pending={pending} />
      <Announcer key={`announcer-${conversation.id}`} session={session} fresh={status === "new"} />
    </>
  );
}

function MissingConversation({ status }: { status: "unknown" | "deleted" }): ReactElement {
  const deleted = status === "deleted";
  return (
    <div className="flex flex-1 flex-col items-center justify-center gap-3 px-6 text-center">
      <h2 className="text-lg font-semibold">{deleted ? "This conversation was deleted" : "Conversation not found"}</h2>
      <p className="max-w-sm text-muted">{deleted ? "Its messages have been removed from the server." : "The link may be outdated, or you may not have access to this conversation."}</p>
      <Button onClick={() => navigate(null)}>Start a new conversation</Button>
    </div>
  );
}
