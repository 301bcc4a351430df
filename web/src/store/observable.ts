// A value that components subscribe to.
import { useSyncExternalStore } from "react";

export class Observable<T> {
  private readonly listeners = new Set<() => void>();

  constructor(private value: T) {}

  get = (): T => this.value;

  set(value: T): void {
    if (Object.is(value, this.value)) return;
    this.value = value;
    for (const listener of [...this.listeners]) listener();
  }

  update(change: (value: T) => T): void {
    this.set(change(this.value));
  }

  subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };
}

export function useObservable<T>(observable: Observable<T>): T {
  return useSyncExternalStore(observable.subscribe, observable.get);
}

/** A part of a value. The component is drawn again only when that part changes. */
export function useSelector<T, P>(observable: Observable<T>, select: (value: T) => P): P {
  return useSyncExternalStore(observable.subscribe, () => select(observable.get()));
}
