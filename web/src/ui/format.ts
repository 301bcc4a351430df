// Numbers, times and JSON as text for users.

export function formatDuration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

/** A rough duration: "5 minutes", "24 hours", "3 days". */
export function formatTimeLeft(ms: number): string {
  const minutes = Math.max(1, Math.round(ms / 60_000));
  if (minutes < 90) return plural(minutes, "minute");
  return minutes < 48 * 60 ? plural(Math.round(minutes / 60), "hour") : plural(Math.round(minutes / 1440), "day");
}

export function formatBytes(bytes: number): string {
  if (bytes < 1000) return plural(bytes, "byte");
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(0)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

export function formatNumber(value: number): string {
  return value.toLocaleString("en-US");
}

const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const DATE_TIME = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export function formatTime(ms: number): string {
  return TIME.format(ms);
}

export function formatDateTime(ms: number): string {
  return DATE_TIME.format(ms);
}

/** The time if it is today, else the date. */
export function formatRecent(ms: number, now: number): string {
  return new Date(ms).toDateString() === new Date(now).toDateString() ? TIME.format(ms) : DAY.format(ms);
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${formatNumber(count)} ${count === 1 ? one : many}`;
}

const JSON_DEPTH_MAX = 32; // deeper JSON is not indented: the indentation would be longer than the content
const JSON_MAX_CHARS = 500_000; // longer JSON is not indented

/** Indented JSON; text that is not JSON, or too deep or too long to be indented, stays as it is. */
export function prettyJson(text: string): string {
  const start = text.trimStart()[0];
  if ((start !== "{" && start !== "[") || text.length > JSON_MAX_CHARS) return text;
  try {
    const value: unknown = JSON.parse(text);
    return isDeeperThan(value, JSON_DEPTH_MAX) ? text : JSON.stringify(value, null, 2);
  } catch (error) {
    if (error instanceof SyntaxError) return text;
    throw error;
  }
}

/** A value as JSON, indented if it is not too deep. */
export function formatJson(value: unknown): string {
  if (!isDeeperThan(value, JSON_DEPTH_MAX)) return JSON.stringify(value, null, 2);
  try {
    return JSON.stringify(value);
  } catch (error) {
    if (error instanceof RangeError) return "This value is nested too deeply to be shown.";
    throw error;
  }
}

function isDeeperThan(value: unknown, levels: number): boolean {
  if (value === null || typeof value !== "object") return false;
  return levels === 0 || Object.values(value).some((one) => isDeeperThan(one, levels - 1));
}

const SUMMARY_MAX_CHARS = 300;

/** The values of a call's arguments on one line, shortened. */
export function summarizeArguments(args: Readonly<Record<string, unknown>>): string {
  const values = Object.values(args).filter((value) => value !== null && value !== "");
  return values.map((value) => (typeof value === "string" ? value : formatJson(value)).slice(0, SUMMARY_MAX_CHARS)).join(", ").replace(/\s+/g, " ").slice(0, SUMMARY_MAX_CHARS);
}
