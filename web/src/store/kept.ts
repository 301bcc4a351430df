// What outlives a reload. A browser may refuse storage; then it lives as long as the page.

export class Kept {
  private readonly memory = new Map<string, string>();

  constructor(private readonly storage: () => Storage) {}

  get(name: string): string | null {
    try {
      return this.storage().getItem(`magent2.${name}`) ?? null;
    } catch (error) {
      if (error instanceof DOMException) return this.memory.get(name) ?? null;
      throw error;
    }
  }

  set(name: string, value: string | null): void {
    try {
      if (value === null) this.storage().removeItem(`magent2.${name}`);
      else this.storage().setItem(`magent2.${name}`, value);
    } catch (error) {
      if (!(error instanceof DOMException)) throw error;
      if (value === null) this.memory.delete(name);
      else this.memory.set(name, value);
    }
  }
}

/** Of this browser. */
export const kept = new Kept(() => localStorage);
/** Of this tab. */
export const keptHere = new Kept(() => sessionStorage);
