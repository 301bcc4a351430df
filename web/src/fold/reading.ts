// Values out of `data`, which is whatever was recorded: each reader takes what fits and else the lack of it.

type Data = Readonly<Record<string, unknown>>;

export function text(data: Data, ...names: string[]): string | null {
  const found = names.map((name) => data[name]).find((value) => typeof value === "string");
  return (found as string | undefined) ?? null;
}

export function count(data: Data, ...names: string[]): number | null {
  const found = names.map((name) => data[name]).find((value) => typeof value === "number");
  return (found as number | undefined) ?? null;
}

export function flag(data: Data, ...names: string[]): boolean {
  return names.some((name) => data[name] === true);
}

export function record(data: Data, name: string): Data {
  const value = data[name];
  return value !== null && typeof value === "object" && !Array.isArray(value) ? (value as Data) : {};
}

export function list(data: Data, ...names: string[]): readonly unknown[] {
  return (names.map((name) => data[name]).find(Array.isArray) as unknown[] | undefined) ?? [];
}

export function texts(data: Data, ...names: string[]): string[] {
  return list(data, ...names).flatMap((value) => (typeof value === "string" ? [value] : []));
}

/** A moment, written as milliseconds, seconds or ISO 8601. */
export function moment(data: Data, ...names: string[]): number | null {
  const value = names.map((name) => data[name]).find((found) => found !== undefined && found !== null);
  if (typeof value === "number") return value < 1e11 ? value * 1000 : value;
  const parsed = typeof value === "string" ? Date.parse(value) : Number.NaN;
  return Number.isNaN(parsed) ? null : parsed;
}
