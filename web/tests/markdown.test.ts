import { lexer } from "marked";
import { describe, expect, test } from "vitest";
import { NOTHING, parse, type Parsed, safeHref } from "../src/ui/blocks";

const TEXT = [
  "# Title", "", "A paragraph with **bold** and", "a second line.", "", "- one", "- two", "", "  still two", "", "1. first", "2. second", "",
  "| a | b |", "|---|---|", "| 1 | 2 |", "", "```python", "def f():", "", "    return 1", "```", "", "> quoted", "", "Setext", "======", "", "end",
].join("\n");

const shape = (parsed: Parsed): string[] => parsed.blocks.map((block) => `${block.type}:${block.raw}`);
const whole = (text: string): string[] => [...lexer(text)].map((block) => `${block.type}:${block.raw}`);

describe("markdown that grows", () => {
  test("is the same letter by letter as at once, at every length", () => {
    let parsed = NOTHING;
    for (let length = 1; length <= TEXT.length; length += 1) {
      parsed = parse(TEXT.slice(0, length), parsed);
      expect(shape(parsed)).toEqual(whole(TEXT.slice(0, length)));
    }
  });

  test("parses again only the last block", () => {
    const before = parse(`${TEXT}\n\nmore`, NOTHING);
    const after = parse(`${TEXT}\n\nmore and more`, before);

    expect(after.blocks.slice(0, -1).every((block, place) => block === before.blocks[place])).toBe(true);
  });

  test("begins anew when the text is another", () => {
    expect(shape(parse("other", parse(TEXT, NOTHING)))).toEqual(whole("other"));
  });
});

describe("addresses", () => {
  test.each(["https://example.org/a?b=c", "http://example.org", "mailto:ann@example.org"])("%s is a link", (href) => {
    expect(safeHref(href)).toBe(href);
  });

  test.each(["javascript:alert(1)", "JaVaScRiPt:alert(1)", " java\nscript:alert(1)", "data:text/html,x", "vbscript:x", "//example.org", "/send", "file:///etc/passwd"])("%j is none", (href) => {
    expect(safeHref(href)).toBeNull();
  });
});
