// What nobody could bring to its end: try it again, or give it up for good, which is asked twice.
import { type ReactElement, type ReactNode, useState } from "react";
import { useDoing } from "../ui/asking";
import { useApp } from "../ui/context";
import { Button } from "../ui/parts";

interface Props {
  retry: () => Promise<unknown>;
  drop: () => Promise<unknown>;
  changed: () => void;
  warning: string;
  children?: ReactNode;
}

export function Decide({ retry, drop, changed, warning, children }: Props): ReactElement {
  const app = useApp();
  const [dropping, setDropping] = useState(false);
  const { busy, problem, run } = useDoing();
  const act = (work: () => Promise<unknown>): void => {
    void run(work).then((done) => {
      setDropping(false);
      if (!done) return;
      app.hurry();
      changed();
    });
  };
  return (
    <>
      {dropping ? (
        <div className="mt-2 flex flex-wrap items-center gap-2 rounded-lg bg-bad-soft px-2.5 py-2">
          <p className="w-full text-bad">{warning}</p>
          <button type="button" autoFocus disabled={busy} onClick={() => act(drop)} className="rounded-md bg-bad px-2.5 py-1 font-medium text-page">Drop it</button>
          <button type="button" disabled={busy} onClick={() => setDropping(false)} className="rounded-md border border-line bg-surface px-2.5 py-1">Keep it</button>
        </div>
      ) : (
        <div className="mt-2 flex flex-wrap items-center gap-2">
          <Button className="py-1!" disabled={busy} onClick={() => act(retry)}>Try again</Button>
          <Button className="py-1!" tone="bad" disabled={busy} onClick={() => setDropping(true)}>Drop</Button>
          {children}
        </div>
      )}
      {problem && <p role="alert" className="mt-1 text-xs text-bad">{problem}</p>}
    </>
  );
}
