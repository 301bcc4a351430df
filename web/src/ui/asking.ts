// Something asked of the server for a view: the answer, the problem, and a way to ask again.
import { useCallback, useEffect, useState } from "react";
import { explain } from "../api/problem";

export interface Asked<T> {
  value: T | null;
  problem: string | null;
  again: () => void;
}

/** Asks when `key` changes, and on `again`; an older answer never replaces a newer one. */
export function useAsked<T>(ask: () => Promise<T>, key: unknown): Asked<T> {
  const [value, setValue] = useState<T | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    let stale = false;
    ask().then(
      (found) => {
        if (stale) return;
        setValue(found);
        setProblem(null);
      },
      (error: unknown) => {
        if (!stale) setProblem(explain(error));
      },
    );
    return () => {
      stale = true;
    };
    // `ask` is a new function at every render; what it asks for is named by `key`.
  }, [key, round]);
  return { value, problem, again: useCallback(() => setRound((before) => before + 1), []) };
}

export interface Doing {
  busy: boolean;
  problem: string | null;
  run: (work: () => Promise<unknown>) => Promise<boolean>;
}

/** Something done once at a time. */
export function useDoing(): Doing {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const run = useCallback(async (work: () => Promise<unknown>) => {
    setBusy(true);
    setProblem(null);
    try {
      await work();
      return true;
    } catch (error) {
      setProblem(explain(error));
      return false;
    } finally {
      setBusy(false);
    }
  }, []);
  return { busy, problem, run };
}
