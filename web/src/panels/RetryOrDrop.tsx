// The buttons for a failed message: retry it, or drop it after a confirmation.
import { type ReactElement, type ReactNode, useState } from "react";
import { Button } from "../ui/common";
import { useApp } from "../ui/context";
import { useAction } from "../ui/requests";

interface Props {
  retry: () => Promise<unknown>;
  drop: () => Promise<unknown>;
  onChange: () => void;
  warning: string;
  children?: ReactNode;
}

export function RetryOrDrop({ retry, drop, onChange, warning, children }: Props): ReactElement {
  const app = useApp();
  const [confirming, setConfirming] = useState(false);
  const { busy, error, run } = useAction();
  const act = (work: () => Promise<unknown>): void => {
    void run(work).then((done) => {
      setConfirming(false);
      if (!done) return;
      app.expectUpdates();
      onChange();
    });
  };
  return (
    <>
      {confirming ? (
        <div className="mt-2 flex flex-wrap items-center gap-2 rounded-lg bg-bad-soft px-2.5 py-2">
          <p className="w-full text-bad">{warning}</p>
          <button type="button" autoFocus disabled={busy} onClick={() => act(drop)} className="rounded-md bg-bad px-2.5 py-1 font-medium text-page">Drop message</button>
          <button type="button" disabled={busy} onClick={() => setConfirming(false)} className="rounded-md border border-line bg-surface px-2.5 py-1">Cancel</button>
        </div>
      ) : (
        <div className="mt-2 flex flex-wrap items-center gap-2">
          <Button className="py-1!" disabled={busy} onClick={() => act(retry)}>Try again</Button>
          <Button className="py-1!" tone="bad" disabled={busy} onClick={() => setConfirming(true)}>Drop</Button>
          {children}
        </div>
      )}
      {error && <p role="alert" className="mt-1 text-xs text-bad">{error}</p>}
    </>
  );
}
