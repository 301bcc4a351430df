// Incremental parsing of growing markdown: complete blocks are parsed once, only the last block is parsed again.
import { lexer, type Token } from "marked";

export interface ParsedMarkdown {
  text: string;
  blocks: readonly Token[];
  /** Offset of the last block; the blocks before it do not change any more. */
  tailStart: number;
}

export const EMPTY_MARKDOWN: ParsedMarkdown = { text: "", blocks: [], tailStart: 0 };

/** Parse a text, reusing the blocks of an earlier, shorter state of it. */
export function parseMarkdown(text: string, before: ParsedMarkdown): ParsedMarkdown {
  if (text === before.text) return before;
  const grown = before.blocks.length > 1 && text.startsWith(before.text.slice(0, before.tailStart)) && text.length > before.text.length;
  const stable = grown ? before.blocks.slice(0, tailIndex(before.blocks)) : [];
  const start = grown ? before.tailStart : 0;
  const blocks = [...stable, ...lexer(text.slice(start), { gfm: true, breaks: true })];
  return { text, blocks, tailStart: text.length - tailLength(blocks) };
}

/** The last block that is not blank lines: it may still grow or merge with what follows. */
function tailIndex(blocks: readonly Token[]): number {
  return Math.max(0, blocks.findLastIndex((block) => block.type !== "space"));
}

function tailLength(blocks: readonly Token[]): number {
  return blocks.slice(tailIndex(blocks)).reduce((sum, block) => sum + block.raw.length, 0);
}

const SAFE_SCHEME = /^(?:https?:|mailto:)/i;

/** The href if its scheme is safe to link to, else null. Control characters, which browsers ignore, are removed first. */
export function safeHref(href: string): string | null {
  const plain = [...href].filter((character) => character.charCodeAt(0) > 32).join("");
  return SAFE_SCHEME.test(plain) ? plain : null;
}
