import { lexer } from "marked";
import { describe, expect, test } from "vitest";
import { EMPTY_MARKDOWN, type ParsedMarkdown, parseMarkdown, safeHref } from "../src/ui/markdownParser";

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

describe("links", () => {
  test.each(["https://example.org/a?b=c", "http://example.org", "mailto:ann@example.org"])("%s is allowed", (href) => {
    expect(safeHref(href)).toBe(href);
  });

  test.each(["javascript:alert(1)", "JaVaScRiPt:alert(1)", " java\nscript:alert(1)", "data:text/html,x", "vbscript:x", "//example.org", "/send", "file:///etc/passwd"])("%j is not allowed", (href) => {
    expect(safeHref(href)).toBeNull();
  });
});
