// A value that components watch.
import { useSyncExternalStore } from "react";

export class Cell<T> {
  private readonly watchers = new Set<() => void>();

  constructor(private value: T) {}

  get = (): T => this.value;

  set(value: T): void {
    if (Object.is(value, this.value)) return;
    this.value = value;
    for (const watcher of [...this.watchers]) watcher();
  }

  update(change: (value: T) => T): void {
    this.set(change(this.value));
  }

  watch = (watcher: () => void): (() => void) => {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  };
}

export function useCell<T>(cell: Cell<T>): T {
  return useSyncExternalStore(cell.watch, cell.get);
}

/** A part of a value; who uses it is drawn again only when the part is another. */
export function usePart<T, P>(cell: Cell<T>, pick: (value: T) => P): P {
  return useSyncExternalStore(cell.watch, () => pick(cell.get()));
}
