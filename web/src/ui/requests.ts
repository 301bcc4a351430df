// Requests of a component: queries that load data, and actions that change something.
import { useCallback, useEffect, useState } from "react";
import { errorMessage } from "../api/errors";

export interface QueryResult<T> {
  value: T | null;
  error: string | null;
  reload: () => void;
}

/** Loads when `key` changes and on `reload`. A response to an older request never replaces a newer one. */
export function useQuery<T>(load: () => Promise<T>, key: unknown): QueryResult<T> {
  const [value, setValue] = useState<T | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    let stale = false;
    load().then(
      (loaded) => {
        if (stale) return;
        setValue(loaded);
        setError(null);
      },
      (cause: unknown) => {
        if (!stale) setError(errorMessage(cause));
      },
    );
    return () => {
      stale = true;
    };
    // `load` is a new function at every render; `key` says what it loads.
  }, [key, round]);
  return { value, error, reload: useCallback(() => setRound((before) => before + 1), []) };
}

export interface Action {
  busy: boolean;
  error: string | null;
  run: (work: () => Promise<unknown>) => Promise<boolean>;
}

/** Runs one request at a time, with its busy flag and error. `run` returns whether it succeeded. */
export function useAction(): Action {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const run = useCallback(async (work: () => Promise<unknown>) => {
    setBusy(true);
    setError(null);
    try {
      await work();
      return true;
    } catch (cause) {
      setError(errorMessage(cause));
      return false;
    } finally {
      setBusy(false);
    }
  }, []);
  return { busy, error, run };
}
