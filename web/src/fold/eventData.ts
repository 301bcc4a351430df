// Typed access to `data` of an event, which may hold anything: a value of another type counts as missing.

type EventData = Readonly<Record<string, unknown>>;

export function getString(data: EventData, ...names: string[]): string | null {
  const found = names.map((name) => data[name]).find((value) => typeof value === "string");
  return (found as string | undefined) ?? null;
}

export function getNumber(data: EventData, ...names: string[]): number | null {
  const found = names.map((name) => data[name]).find((value) => typeof value === "number");
  return (found as number | undefined) ?? null;
}

export function getFlag(data: EventData, ...names: string[]): boolean {
  return names.some((name) => data[name] === true);
}

export function getRecord(data: EventData, name: string): EventData {
  const value = data[name];
  return value !== null && typeof value === "object" && !Array.isArray(value) ? (value as EventData) : {};
}

export function getList(data: EventData, ...names: string[]): readonly unknown[] {
  return (names.map((name) => data[name]).find(Array.isArray) as unknown[] | undefined) ?? [];
}

export function getStrings(data: EventData, ...names: string[]): string[] {
  return getList(data, ...names).flatMap((value) => (typeof value === "string" ? [value] : []));
}

/** Milliseconds since 1970 of a time given in milliseconds, in seconds or as ISO 8601. */
export function getTime(data: EventData, ...names: string[]): number | null {
  const value = names.map((name) => data[name]).find((found) => found !== undefined && found !== null);
  if (typeof value === "number") return value < 1e11 ? value * 1000 : value;
  const parsed = typeof value === "string" ? Date.parse(value) : Number.NaN;
  return Number.isNaN(parsed) ? null : parsed;
}
