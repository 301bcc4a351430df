// Files that are attached to the next message of a conversation. They are uploaded as soon as they are chosen. The list
// survives a reload of the tab, like the text of the message.
import type { ApiClient } from "../api/client";
import { ApiError, errorMessage } from "../api/errors";
import { newId } from "./ids";
import { Observable } from "./observable";
import { parseList, tabStore } from "./storage";

const STORAGE_KEY = "attached";
export const FILES_MAX = 20; // the server's limit for one message

/** A file of a message, as the server describes it. */
export interface SentFile {
  file_id: string;
  name: string;
  media_type: string;
  size: number;
}

export interface UploadItem {
  key: string;
  sessionId: string;
  name: string;
  bytes: number;
  /** The URL of a picture of the file; null if it is not an image. */
  preview: string | null;
  /** The part that was sent, from 0 to 1. */
  progress: number;
  file: SentFile | null;
  error: string | null;
  /** Whether another attempt may succeed. */
  retryable: boolean;
}

/** The list as it was before a reload. The content of a file that was not uploaded yet is gone. */
export function parseAttached(text: string | null): readonly UploadItem[] {
  const stored = parseList<UploadItem>(text, (one) => typeof one.key === "string");
  return stored.map((one) => ({ ...one, preview: null, retryable: false, error: one.file === null ? "The upload was interrupted. Attach the file again." : null }));
}

export class Uploads {
  readonly items = new Observable(parseAttached(tabStore.get(STORAGE_KEY)));
  /** The contents of the files whose upload has not succeeded. */
  private readonly contents = new Map<string, File>();
  private readonly running = new Map<string, AbortController>();
  private maxBytes: number | null = null;

  constructor(private readonly api: () => ApiClient) {
    this.items.subscribe(() => tabStore.set(STORAGE_KEY, JSON.stringify(this.items.get())));
  }

  add(sessionId: string, files: readonly File[]): void {
    for (const file of files) {
      const preview = file.type.startsWith("image/") ? URL.createObjectURL(file) : null;
      const item: UploadItem = { key: newId(), sessionId, name: file.name || "pasted file", bytes: file.size, preview, progress: 0, file: null, error: null, retryable: false };
      this.items.update((list) => [...list, item]);
      this.contents.set(item.key, file);
      void this.upload(item, file);
    }
  }

  retry(item: UploadItem): void {
    const content = this.contents.get(item.key);
    if (content === undefined) return;
    this.update(item.key, { progress: 0, error: null, retryable: false });
    void this.upload(item, content);
  }

  remove(key: string): void {
    this.running.get(key)?.abort();
    this.contents.delete(key);
    const gone = this.items.get().find((one) => one.key === key);
    this.items.update((list) => list.filter((one) => one.key !== key));
    if (gone?.preview) URL.revokeObjectURL(gone.preview);
    if (gone?.file) void this.api().deleteFile(gone.file.file_id).catch(() => undefined); // it is only unused then
  }

  clear(): void {
    for (const { key } of this.items.get()) this.remove(key);
  }

  /** Take the uploaded files of a conversation, to send them. */
  take(sessionId: string): SentFile[] {
    const own = this.items.get().filter((one) => one.sessionId === sessionId && one.file !== null);
    this.items.update((list) => list.filter((one) => !own.includes(one)));
    for (const one of own) if (one.preview !== null) URL.revokeObjectURL(one.preview);
    return own.flatMap((one) => one.file ?? []);
  }

  private async upload(item: UploadItem, file: File): Promise<void> {
    const abort = new AbortController();
    this.running.set(item.key, abort);
    try {
      const places = this.items.get().filter((one) => one.sessionId === item.sessionId);
      if (places.length > FILES_MAX) throw new Error(`A message has at most ${FILES_MAX} files.`);
      const maxBytes = (this.maxBytes ??= (await this.api().fileLimits()).file_max_bytes);
      if (file.size > maxBytes) throw new Error(`The file is larger than ${Math.floor(maxBytes / 1e6)} MB.`);
      const sent = await this.api().uploadFile(file, item.name, (progress) => this.update(item.key, { progress }), abort.signal);
      this.update(item.key, { progress: 1, file: sent });
      this.contents.delete(item.key);
    } catch (error) {
      if (!abort.signal.aborted) this.update(item.key, { error: errorMessage(error), retryable: error instanceof ApiError && error.isTransient });
    } finally {
      this.running.delete(item.key);
    }
  }

  private update(key: string, change: Partial<UploadItem>): void {
    this.items.update((list) => list.map((one) => (one.key === key ? { ...one, ...change } : one)));
  }
}
