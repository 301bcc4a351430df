import { lexer } from "marked";
import { describe, expect, test } from "vitest";
import { EMPTY_MARKDOWN, MARKDOWN_MAX_CHARS, NESTING_MAX, PARAGRAPH_MAX_CHARS, type ParsedMarkdown, parseMarkdown, safeHref } from "../src/ui/markdownParser";

const TEXT = [
  "# Title", "", "A paragraph with **bold** and", "a second line.", "", "- one", "- two", "", "  still two", "", "1. first", "2. second", "",
  "| a | b |", "|---|---|", "| 1 | 2 |", "", "```python", "def f():", "", "    return 1", "```", "", "> quoted", "", "Setext", "======", "", "end",
].join("\n");

const shape = (parsed: ParsedMarkdown): string[] => parsed.blocks.map((block) => `${block.type}:${block.raw}`);
const whole = (text: string): string[] => [...lexer(text)].map((block) => `${block.type}:${block.raw}`);

describe("growing markdown", () => {
  test("gives the same blocks character by character as in one go, at every length", () => {
    let parsed = EMPTY_MARKDOWN;
    for (let length = 1; length <= TEXT.length; length += 1) {
      parsed = parseMarkdown(TEXT.slice(0, length), parsed);
      expect(shape(parsed)).toEqual(whole(TEXT.slice(0, length)));
    }
  });

  test("parses only the last block again", () => {
    const before = parseMarkdown(`${TEXT}\n\nmore`, EMPTY_MARKDOWN);
    const after = parseMarkdown(`${TEXT}\n\nmore and more`, before);

    expect(after.blocks.slice(0, -1).every((block, place) => block === before.blocks[place])).toBe(true);
  });

  test("starts again when the text is a different one", () => {
    expect(shape(parseMarkdown("other", parseMarkdown(TEXT, EMPTY_MARKDOWN)))).toEqual(whole("other"));
  });
});

describe("limits", () => {
  const isPlain = (text: string): boolean => parseMarkdown(text, EMPTY_MARKDOWN).isPlain;

  test.each([
    ["quotes", ">".repeat(4_000)],
    ["lists", `${"- ".repeat(2_000)}a`],
    ["emphasis", `${"*a ".repeat(100)}${"b*".repeat(100)}`],
    ["a million table cells", `${"|a".repeat(1_000)}|\n${"|-".repeat(1_000)}|\n${"|\n".repeat(1_000)}`],
    ["quotes that end one by one", Array.from({ length: 40 }, (_, level) => `${">".repeat(40 - level)} a`).join("\n")],
    ["a long text", "a ".repeat(MARKDOWN_MAX_CHARS)],
  ])("%s beyond a limit are shown as they are", (_, text) => {
    expect(isPlain(text)).toBe(true);
  });

  test("ordinary texts up to the limits are formatted", () => {
    const paragraph = "Some *text* with `code`, a [link](https://example.org) and **more**.\n\n";
    expect(isPlain(paragraph.repeat(200))).toBe(false);
    expect(isPlain(`${"> ".repeat(NESTING_MAX - 3)}deep`)).toBe(false);
  });

  test("a paragraph that is too long is one text", () => {
    const paragraph = parseMarkdown(`# Title\n\n${"*a*".repeat(PARAGRAPH_MAX_CHARS)}`, EMPTY_MARKDOWN).blocks.at(-1);

    expect(paragraph).toMatchObject({ type: "paragraph", tokens: [{ type: "text" }] });
  });

  test("a growing text that is beyond a limit stays as it is", () => {
    const bomb = parseMarkdown(">".repeat(4_000), EMPTY_MARKDOWN);

    expect(parseMarkdown(`${bomb.text}\n\nmore`, bomb).isPlain).toBe(true);
    expect(parseMarkdown("another text", bomb).isPlain).toBe(false);
  });
});

describe("links", () => {
  test.each(["https://example.org/a?b=c", "http://example.org", "mailto:ann@example.org"])("%s is allowed", (href) => {
    expect(safeHref(href)).toBe(href);
  });

  test.each(["javascript:alert(1)", "JaVaScRiPt:alert(1)", " java\nscript:alert(1)", "data:text/html,x", "vbscript:x", "//example.org", "/send", "file:///etc/passwd"])("%j is not allowed", (href) => {
    expect(safeHref(href)).toBeNull();
  });
});
