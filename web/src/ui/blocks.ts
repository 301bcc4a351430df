// Markdown as it grows: what is complete is parsed once, and only the last block again. Pure.
import { type Token, type TokensList, lexer } from "marked";

export interface Parsed {
  text: string;
  blocks: readonly Token[];
  /** Where the last block begins: all before it stays as it is. */
  tail: number;
}

export const NOTHING: Parsed = { text: "", blocks: [], tail: 0 };

/** The blocks of a text, given those of an earlier state of it. */
export function parse(text: string, before: Parsed): Parsed {
  if (text === before.text) return before;
  const grown = before.blocks.length > 1 && text.startsWith(before.text.slice(0, before.tail)) && text.length > before.text.length;
  const stable = grown ? before.blocks.slice(0, firstOfTail(before.blocks)) : [];
  const from = grown ? before.tail : 0;
  const blocks = [...stable, ...lex(text.slice(from))];
  return { text, blocks, tail: text.length - tailLength(blocks) };
}

function lex(text: string): Token[] {
  const tokens: TokensList = lexer(text, { gfm: true, breaks: true });
  return [...tokens];
}

/** The last block that is more than blank lines, which may still join what comes. */
function firstOfTail(blocks: readonly Token[]): number {
  return Math.max(0, blocks.findLastIndex((block) => block.type !== "space"));
}

function tailLength(blocks: readonly Token[]): number {
  return blocks.slice(firstOfTail(blocks)).reduce((sum, block) => sum + block.raw.length, 0);
}

const SAFE = /^(?:https?:|mailto:)/i;

/** Only addresses that lead to a page or a mailbox become links. */
export function safeHref(href: string): string | null {
  const plain = [...href].filter((letter) => letter.charCodeAt(0) > 32).join("");
  return SAFE.test(plain) ? plain : null;
}
