// The failed attempts of a run: the cause, when the next attempt starts, and what the user can do.
import { type ReactElement, useEffect, useState } from "react";
import type { FailureItem } from "../fold/state";
import { useApp, useIsStale } from "../ui/context";
import { formatDuration, plural } from "../ui/format";
import { Icon } from "../ui/icons";
import { useAction } from "../ui/requests";

const REFRESH_MS = 500;
const TONES = { retrying: "bg-warn-soft text-warn", failed: "bg-bad-soft text-bad", recovered: "bg-sunken text-muted", stopped: "bg-sunken text-muted" };
const ACTION_STYLE = "inline-flex shrink-0 items-center gap-1.5 font-medium underline-offset-2 hover:underline disabled:opacity-60";

export function FailureCard({ item, retryable }: { item: FailureItem; retryable: boolean }): ReactElement {
  return (
    <div className="pb-4 pl-9.5">
      <section aria-label="Failed attempts" className={`flex flex-wrap items-center gap-x-3 gap-y-1 rounded-lg px-3 py-2 text-sm ${TONES[item.status]}`}>
        <Icon name="warn" size={16} className="shrink-0" />
        <span className="min-w-0 flex-1 wrap-anywhere">
          {item.status === "retrying" ? <NextAttempt item={item} /> : <Outcome item={item} />}
          {item.cause !== null && <span className="block text-xs opacity-90">{readableCause(item.cause)}</span>}
        </span>
        {item.status === "retrying" && <StopRetries />}
        {retryable && item.retryOf !== null && <RetryButton messageId={item.retryOf} />}
      </section>
    </div>
  );
}

function Outcome({ item }: { item: FailureItem }): ReactElement {
  const count = plural(item.attempts, "failed attempt");
  switch (item.status) {
    case "recovered": return <>The run succeeded after {count}.</>;
    case "stopped": return <>The run was stopped after {count}.</>;
    default: return <>The run failed.{item.attempts > 1 && ` It was tried ${item.attempts} times.`}</>;
  }
}

/** Counts down to the next attempt. Without updates from the server, the countdown would be a guess. */
function NextAttempt({ item }: { item: FailureItem }): ReactElement {
  const stale = useIsStale();
  const [now, setNow] = useState(() => Date.now());
  const counting = !stale && item.retryAt !== null && item.retryAt > now;
  useEffect(() => {
    if (!counting) return;
    const timer = setInterval(() => setNow(Date.now()), REFRESH_MS);
    return () => clearInterval(timer);
  }, [counting, item.retryAt]);
  if (stale) return <>{plural(item.attempts, "attempt")} failed before updates stopped.</>;
  if (item.retryAt !== null && item.retryAt > now) return <>Retry {item.attempts} in {formatDuration(Math.ceil((item.retryAt - now) / 1000) * 1000)}.</>;
  return <>Retry {item.attempts} {item.retryAt === null ? "is running" : "starts when a worker is free"}.</>;
}

/** "ModelUnavailable: no answer" → "Model unavailable: no answer". */
export function readableCause(text: string): string {
  const [, name, rest] = /^([A-Z][A-Za-z]+)(: [^]*)?$/.exec(text) ?? [];
  if (name === undefined) return text;
  const words = name.replace(/(?:Error|Exception)$/, "").replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase();
  return words === "" ? text : words.charAt(0).toUpperCase() + words.slice(1) + (rest ?? "");
}

function StopRetries(): ReactElement {
  const app = useApp();
  const { busy, error, run } = useAction();
  const [stopped, setStopped] = useState(false);
  const stop = (): void => {
    const id = app.current.get()?.id;
    if (id === undefined) return;
    void run(() => app.api.stop(id, "now")).then((done) => {
      setStopped(done);
      app.expectUpdates();
    });
  };
  return (
    <>
      <button type="button" disabled={busy || stopped} onClick={stop} className={ACTION_STYLE}><Icon name="stop" size={14} /> {busy || stopped ? "Stopping…" : "Stop retrying"}</button>
      {error && <span role="alert" className="w-full text-xs text-bad">{error}</span>}
    </>
  );
}

export function RetryButton({ messageId }: { messageId: string }): ReactElement {
  const app = useApp();
  const { busy, error, run } = useAction();
  const retry = (): void => {
    const id = app.current.get()?.id;
    if (id !== undefined) void run(() => app.api.retry(id, messageId)).then(() => app.expectUpdates());
  };
  return (
    <>
      <button type="button" disabled={busy} onClick={retry} className={ACTION_STYLE}><Icon name="retry" size={14} /> Try again</button>
      {error && <span role="alert" className="w-full text-xs text-bad">{error}</span>}
    </>
  );
}
