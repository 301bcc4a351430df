// Values that survive a reload. If the browser refuses storage, they live as long as the page.

const PREFIX = "magent2.";

export class BrowserStorage {
  private readonly memory = new Map<string, string>();

  constructor(private readonly storage: () => Storage) {}

  get(name: string): string | null {
    try {
      return this.storage().getItem(PREFIX + name) ?? null;
    } catch (error) {
      if (error instanceof DOMException) return this.memory.get(name) ?? null;
      throw error;
    }
  }

  set(name: string, value: string | null): void {
    try {
      if (value === null) this.storage().removeItem(PREFIX + name);
      else this.storage().setItem(PREFIX + name, value);
    } catch (error) {
      if (!(error instanceof DOMException)) throw error;
      if (value === null) this.memory.delete(name);
      else this.memory.set(name, value);
    }
  }

  /** Remove all values of the page. */
  clear(): void {
    this.memory.clear();
    try {
      const storage = this.storage();
      for (const name of Object.keys(storage)) if (name.startsWith(PREFIX)) storage.removeItem(name);
    } catch (error) {
      if (!(error instanceof DOMException)) throw error;
    }
  }
}

/** A list that was stored as JSON. It is empty if nothing was stored, or something else. */
export function parseList<T>(text: string | null, isEntry: (one: T) => boolean): readonly T[] {
  if (text === null) return [];
  try {
    const stored: unknown = JSON.parse(text);
    return Array.isArray(stored) ? (stored as T[]).filter(isEntry) : [];
  } catch (error) {
    if (error instanceof SyntaxError) return [];
    throw error;
  }
}

/** Shared by all tabs, kept until deleted. */
export const localStore = new BrowserStorage(() => localStorage);
/** Of this tab, kept until it is closed. */
export const tabStore = new BrowserStorage(() => sessionStorage);
