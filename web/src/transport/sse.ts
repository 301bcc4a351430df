// Server-sent events out of a byte stream.

export interface Frame {
  event: string;
  data: string;
}

/** Takes pieces of text as they come and gives whole frames; comments and marks without data give none. */
export class FrameParser {
  private rest = "";
  private event = "message";
  private data: string[] = [];

  push(piece: string): Frame[] {
    const lines = (this.rest + piece).split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop() ?? "";
    return lines.flatMap((line) => this.line(line));
  }

  private line(line: string): Frame[] {
    if (line === "") return this.end();
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") this.event = value;
    if (name === "data") this.data.push(value);
    return [];
  }

  private end(): Frame[] {
    const frames = this.data.length > 0 ? [{ event: this.event, data: this.data.join("\n") }] : [];
    this.event = "message";
    this.data = [];
    return frames;
  }
}
