// One row of the message log.
import { memo, type ReactElement } from "react";
import type { AnswerItem, HandoffItem, NoticeItem, Run, UserItem } from "../fold/state";
import type { PendingMessage } from "../store/sender";
import { Avatar, Badge, CopyButton, ErrorMessage, LongText, Spinner } from "../ui/common";
import { useApp, useHasRoute, useIsStale } from "../ui/context";
import { useDraft } from "../ui/draft";
import { formatDateTime, formatNumber, formatTime, plural } from "../ui/format";
import { Icon } from "../ui/icons";
import { Markdown } from "../ui/Markdown";
import { ApprovalCard } from "./ApprovalCard";
import { Attachments } from "./Attachments";
import { BudgetCard } from "./BudgetCard";
import { FailureCard, RetryButton } from "./FailureCard";
import { MessageEditor, RegenerateButton, TextButton } from "./Replacing";
import type { ItemState, Row } from "./rows";
import { SubagentCard } from "./SubagentCard";
import { ToolCard } from "./ToolCard";

export const RowView = memo(function RowView({ row }: { row: Row }): ReactElement {
  if (row.kind === "pending") return <PendingRow message={row.pending} />;
  if (row.kind === "working") return <WorkingRow run={row.run} />;
  const { item, state } = row;
  switch (item.kind) {
    case "user": return <UserMessage item={item} state={state} />;
    case "answer": return <AnswerRow item={item} replaceable={state.replaceable} />;
    case "tool": return <ToolCard item={item} />;
    case "handoff": return <HandoffRow item={item} />;
    case "approval": return <ApprovalCard item={item} />;
    case "budget": return <BudgetCard item={item} />;
    case "subagent": return <SubagentCard item={item} />;
    case "failure": return <FailureCard item={item} retryable={state.retryable} />;
    case "notice": return <NoticeRow item={item} retryable={state.retryable} />;
  }
});

/** Replaces a row that could not be drawn: its text, without formatting. */
export function FailedRow({ row }: { row: Row }): ReactElement {
  const text = row.kind === "item" && "text" in row.item ? row.item.text : "";
  return (
    <div className="pb-4 pl-9.5">
      <ErrorMessage text="This entry could not be displayed because of an error in the page. The Events panel shows its record." />
      {text !== "" && <p className="mt-2 wrap-anywhere whitespace-pre-wrap"><LongText text={text} /></p>}
    </div>
  );
}

const BUBBLE = "max-w-[85%] rounded-2xl rounded-br-md bg-accent-soft px-4 py-2.5 wrap-anywhere whitespace-pre-wrap";

/** Incoming messages are on the right; if an agent wrote one, its name is shown. */
function UserMessage({ item, state }: { item: UserItem; state: ItemState }): ReactElement {
  const name = item.sender.replace(/^user:/, "");
  const [edited, setEdited] = useDraft(`edit.${item.key}`); // not in the row, which is removed while it is out of sight
  const canEdit = useHasRoute("/api/sdk/session/{session_id}/edit") && state.replaceable;
  if (edited !== null && canEdit) return <MessageEditor item={item} text={edited} setText={setEdited} />;
  return (
    <article aria-label={`${name}, ${formatTime(item.at)}`} className="flex flex-col items-end pt-2 pb-4">
      {item.sender.startsWith("agent:") && <span className="mb-1 text-xs text-muted">{item.sender.slice(6)}</span>}
      {item.text.trim() !== "" && <div className={BUBBLE}><LongText text={item.text} /></div>}
      <Attachments files={item.attachments} atEnd />
      <div className="mt-1 flex h-5 items-center gap-1.5 text-xs text-faint">
        {canEdit && <TextButton icon="edit" label="Edit" title="Change this message and have it answered again" onClick={() => setEdited(item.text)} />}
        <ReceiptBadge item={item} receipt={state.receipt} />
        <time title={formatDateTime(item.at)}>{formatTime(item.at)}</time>
      </div>
    </article>
  );
}

function ReceiptBadge({ item, receipt }: { item: UserItem; receipt: ItemState["receipt"] }): ReactElement | null {
  if (item.seenAt !== null) return <Badge tone="good"><Icon name="eye" size={12} /> Seen</Badge>;
  if (receipt === "waiting") return <Badge tone="accent"><Icon name="clock" size={12} /> Waiting</Badge>;
  if (receipt === "unconfirmed") return <Badge tone="warn"><Icon name="clock" size={12} /> Sent, not confirmed by the agent</Badge>;
  return null;
}

function PendingRow({ message }: { message: PendingMessage }): ReactElement {
  const app = useApp();
  return (
    <article aria-label="Sending" className="flex flex-col items-end pt-2 pb-4">
      {message.text.trim() !== "" && <div className={`${BUBBLE} ${message.state === "refused" ? "bg-bad-soft!" : ""}`}><LongText text={message.text} /></div>}
      {message.attachments !== undefined && <p className="mt-1 text-sm text-muted">{message.attachments.map((file) => file.name).join(", ")}</p>}
      <div className="mt-1 flex min-h-5 max-w-[85%] items-center gap-1.5 text-xs text-faint">
        {message.state === "refused" ? (
          <>
            <span role="alert" className="text-bad wrap-anywhere">{message.why}</span>
            <button type="button" className="font-medium text-accent-ink underline" onClick={() => app.sender.retry(message.clientId)}>Send again</button>
            <button type="button" className="font-medium text-accent-ink underline" onClick={() => app.sender.discard(message.clientId)}>Discard</button>
          </>
        ) : message.state === "waiting" ? (
          <Badge tone="warn"><Icon name="clock" size={12} /> Not sent yet. Retrying automatically.</Badge>
        ) : (
          <span>{message.state !== "accepted" ? "Sending…" : message.how === "steer" ? "Sent, not confirmed by the agent" : "Sent"}</span>
        )}
      </div>
    </article>
  );
}

function AnswerRow({ item, replaceable }: { item: AnswerItem; replaceable: boolean }): ReactElement {
  const stale = useIsStale();
  const name = item.agent ?? "agent";
  return (
    <article aria-label={`${name}, ${formatTime(item.at)}`} aria-busy={item.streaming} className="group flex gap-3 pt-1 pb-4">
      <Avatar name={name} />
      <div className="min-w-0 flex-1">
        <header className="mb-1 flex h-6 items-center gap-2 text-sm">
          <span className="font-semibold">{name}</span>
          <time className="text-xs text-faint" title={formatDateTime(item.at)}>{formatTime(item.at)}</time>
          {item.streaming && (stale ? <Badge tone="warn">Not complete, no connection</Badge> : <Badge tone="accent"><span className="size-1.5 rounded-full bg-current" /> Streaming</Badge>)}
        </header>
        <Markdown text={item.text} growing={item.streaming} />
        <Attachments files={item.attachments} />
        <footer className="mt-1 flex h-7 items-center gap-2 text-xs text-faint">
          {!item.streaming && <CopyButton text={() => item.text} label="Copy answer" />}
          {replaceable && <RegenerateButton />}
          {item.usage !== null && <span title={`${formatNumber(item.usage.inputTokens)} input, ${formatNumber(item.usage.outputTokens)} output`}>{plural(item.usage.totalTokens, "token")}</span>}
        </footer>
      </div>
    </article>
  );
}

function WorkingRow({ run }: { run: Run }): ReactElement {
  const name = run.agent ?? "The agent";
  const state = useIsStale() ? <>{name} had not finished when updates stopped</> : <><Spinner /> {name} is working{run.attempt > 1 && ` (attempt ${run.attempt})`}</>;
  return (
    <div className="flex items-center gap-3 pt-1 pb-4 text-sm text-muted">
      <Avatar name={run.agent ?? "agent"} />
      <span className="inline-flex items-center gap-2">{state}</span>
    </div>
  );
}

const HANDOFF_REASONS: Readonly<Record<string, string>> = { manual_switch: "switched manually" };

function HandoffRow({ item }: { item: HandoffItem }): ReactElement {
  return (
    <div className="flex justify-center pt-1 pb-4">
      <p className="inline-flex max-w-full flex-wrap items-center justify-center gap-x-2 gap-y-0.5 rounded-full border border-line bg-surface px-3.5 py-1 text-sm text-muted">
        <Icon name="swap" size={15} className="text-accent-ink" />
        <span>{item.from !== null && <>{item.from} → </>}<strong className="font-semibold text-ink">{item.to}</strong></span>
        {item.reason && <span className="text-faint wrap-anywhere">{HANDOFF_REASONS[item.reason] ?? item.reason}</span>}
      </p>
    </div>
  );
}

const TONES = { plain: "bg-sunken text-muted", warning: "bg-warn-soft text-warn", error: "bg-bad-soft text-bad" };

function NoticeRow({ item, retryable }: { item: NoticeItem; retryable: boolean }): ReactElement {
  return (
    <div className="pb-4 pl-9.5">
      <div className={`flex flex-wrap items-center gap-x-3 gap-y-1 rounded-lg px-3 py-2 text-sm ${TONES[item.tone]}`}>
        <span className="min-w-0 flex-1 wrap-anywhere">{item.text}{item.detail && <span className="block text-xs opacity-90">{item.detail}</span>}</span>
        {retryable && item.retryOf !== null && <RetryButton messageId={item.retryOf} />}
        {item.folded !== null && (
          <details className="w-full">
            <summary className="cursor-pointer text-xs underline">Show the summary</summary>
            <p className="mt-2 wrap-anywhere whitespace-pre-wrap text-ink"><LongText text={item.folded} /></p>
          </details>
        )}
      </div>
    </div>
  );
}
