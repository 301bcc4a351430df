// Incremental parsing of growing markdown: complete blocks are parsed once, only the last block is parsed again.
// The text is untrusted. A few kilobytes can nest thousands of levels deep, or keep the parser busy for hours, so the
// work is limited, and a text beyond a limit is shown as it is.
import { Lexer, type Token, Tokenizer, type Tokens, type TokensList } from "marked";

export const MARKDOWN_MAX_CHARS = 100_000; // longer texts are not parsed
export const NESTING_MAX = 32; // levels of quotes, lists, emphasis and links inside each other
export const TOKENS_MAX = 20_000; // table cells, paragraphs and spans of one text
export const PARAGRAPH_MAX_CHARS = 10_000; // a longer paragraph is shown as it is: one rule may take quadratic time on it
export const PARSE_MAX_MS = 1_000; // ordinary texts of the maximal length take about 100 ms

export interface ParsedMarkdown {
  text: string;
  blocks: readonly Token[];
  /** Offset of the last block; the blocks before it do not change any more. */
  tailStart: number;
  /** Whether the text is beyond a limit: it has no blocks and is shown as it is. */
  isPlain: boolean;
}

export const EMPTY_MARKDOWN: ParsedMarkdown = { text: "", blocks: [], tailStart: 0, isPlain: false };

/** Parse a text, reusing the blocks of an earlier, shorter state of it. */
export function parseMarkdown(text: string, before: ParsedMarkdown): ParsedMarkdown {
  if (text === before.text) return before;
  const plain: ParsedMarkdown = { ...EMPTY_MARKDOWN, text, isPlain: true };
  if (text.length > MARKDOWN_MAX_CHARS || (before.isPlain && text.startsWith(before.text))) return plain;
  const grown = before.blocks.length > 1 && text.startsWith(before.text.slice(0, before.tailStart)) && text.length > before.text.length;
  const stable = grown ? before.blocks.slice(0, tailIndex(before.blocks)) : [];
  const start = grown ? before.tailStart : 0;
  try {
    const blocks = [...stable, ...new LimitedLexer().lex(text.slice(start))];
    return { text, blocks, tailStart: text.length - tailLength(blocks), isPlain: false };
  } catch (error) {
    if (error instanceof TooComplex) return plain;
    throw error;
  }
}

/** A text is beyond a limit of the parser. */
class TooComplex extends Error {}

/** The lexer of `marked`, which ends with `TooComplex` at a limit. It calls itself for every level of nesting. */
class LimitedLexer extends Lexer {
  private tokenCount = 0;
  private depth = 0;

  constructor() {
    super({ gfm: true, breaks: true, tokenizer: new LimitedTokenizer() });
  }

  override blockTokens(source: string, tokens?: Token[] & TokensList, lastParagraphClipped?: boolean): Token[] & TokensList {
    return this.parseNested(() => super.blockTokens(source, tokens, lastParagraphClipped)) as Token[] & TokensList;
  }

  override inlineTokens(source: string, tokens: Token[] = []): Token[] {
    if (source.length <= PARAGRAPH_MAX_CHARS) return this.parseNested(() => super.inlineTokens(source, tokens));
    tokens.push({ type: "text", raw: source, text: source, escaped: false } satisfies Tokens.Text);
    return tokens;
  }

  /** Called for every table cell, before its content is parsed: a short text can have millions of empty cells. */
  override inline(source: string, tokens?: Token[]): Token[] {
    this.addTokens(1);
    return super.inline(source, tokens);
  }

  private addTokens(count: number): void {
    this.tokenCount += count;
    if (this.tokenCount > TOKENS_MAX) throw new TooComplex("too many tokens");
  }

  private parseNested(parse: () => Token[]): Token[] {
    if (this.depth === NESTING_MAX) throw new TooComplex("too deep");
    this.depth += 1;
    const tokens = parse();
    this.depth -= 1;
    this.addTokens(tokens.length);
    return tokens;
  }
}

/** Checks the time at every step: with the first rule that a step tries, and before the search for a closing delimiter. */
class LimitedTokenizer extends Tokenizer {
  private readonly deadline = performance.now() + PARSE_MAX_MS;

  private checkDeadline(): void {
    if (performance.now() > this.deadline) throw new TooComplex("too slow");
  }

  override space(source: string): Tokens.Space | undefined {
    this.checkDeadline();
    return super.space(source);
  }

  override escape(source: string): Tokens.Escape | undefined {
    this.checkDeadline();
    return super.escape(source);
  }

  override emStrong(source: string, masked: string, previous?: string): Tokens.Em | Tokens.Strong | undefined {
    this.checkDeadline();
    return super.emStrong(source, masked, previous);
  }
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
