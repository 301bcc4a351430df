// Figures and times for people.

export function duration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

/** How much time is left, roughly: nobody decides by the second. */
export function left(ms: number): string {
  const minutes = Math.max(1, Math.round(ms / 60_000));
  if (minutes < 90) return plural(minutes, "minute");
  return minutes < 48 * 60 ? plural(Math.round(minutes / 60), "hour") : plural(Math.round(minutes / 1440), "day");
}

export function size(bytes: number): string {
  if (bytes < 1000) return plural(bytes, "byte");
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(0)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

export function figure(value: number): string {
  return value.toLocaleString("en-US");
}

const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const WHOLE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export function clock(ms: number): string {
  return TIME.format(ms);
}

export function whole(ms: number): string {
  return WHOLE.format(ms);
}

/** As a list of conversations wants it: the time today, else the day. */
export function recent(ms: number, now: number): string {
  return new Date(ms).toDateString() === new Date(now).toDateString() ? TIME.format(ms) : DAY.format(ms);
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${figure(count)} ${count === 1 ? one : many}`;
}

/** JSON as it reads best; text that is not JSON stays as it is. */
export function pretty(text: string): string {
  const start = text.trimStart()[0];
  if (start !== "{" && start !== "[") return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch (error) {
    if (error instanceof SyntaxError) return text;
    throw error;
  }
}

/** Arguments on one line, as a hint of what a call is about. */
export function brief(args: Readonly<Record<string, unknown>>): string {
  const values = Object.values(args).filter((value) => value !== null && value !== "");
  return values.map((value) => (typeof value === "string" ? value : JSON.stringify(value))).join(", ").replace(/\s+/g, " ");
}
