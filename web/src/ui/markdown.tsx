// Model output as elements, never as HTML: what looks like HTML is shown as the text it is.
import type { Token, Tokens } from "marked";
import { Fragment, memo, type ReactElement, type ReactNode, useRef } from "react";
import { NOTHING, parse, type Parsed, safeHref } from "./blocks";
import { CodeBlock } from "./code";

export const Markdown = memo(function Markdown({ text, growing }: { text: string; growing: boolean }): ReactElement {
  const parsed = useRef<Parsed>(NOTHING);
  parsed.current = parse(text, growing ? parsed.current : parsed.current.text === text ? parsed.current : NOTHING);
  const { blocks } = parsed.current;
  return (
    <div className="prose-answer">
      {blocks.map((block, place) => (
        <Block key={place} block={block} growing={growing && place === blocks.length - 1} />
      ))}
    </div>
  );
});

const Block = memo(
  function Block({ block, growing }: { block: Token; growing: boolean }): ReactNode {
    return blockOf(block, growing);
  },
  (before, after) => before.block.raw === after.block.raw && before.block.type === after.block.type && before.growing === after.growing,
);

function blockOf(token: Token, growing: boolean): ReactNode {
  switch (token.type) {
    case "space":
    case "def": return null;
    case "paragraph": return <p>{inline(token.tokens)}</p>;
    case "heading": return heading(token as Tokens.Heading);
    case "code": return <CodeBlock code={(token as Tokens.Code).text} language={(token as Tokens.Code).lang ?? ""} growing={growing} />;
    case "blockquote": return <blockquote>{blocksOf(token.tokens)}</blockquote>;
    case "list": return listOf(token as Tokens.List);
    case "table": return tableOf(token as Tokens.Table);
    case "hr": return <hr />;
    case "text": return token.tokens ? <p>{inline(token.tokens)}</p> : <p>{token.text}</p>;
    default: return <p className="whitespace-pre-wrap">{token.raw.trimEnd()}</p>;
  }
}

function blocksOf(tokens: readonly Token[] | undefined): ReactNode {
  return tokens?.map((token, place) => <Fragment key={place}>{blockOf(token, false)}</Fragment>);
}

/** The page has its own two levels above. */
function heading(token: Tokens.Heading): ReactElement {
  const Level = `h${Math.min(6, token.depth + 2)}` as "h3" | "h4" | "h5" | "h6";
  return <Level>{inline(token.tokens)}</Level>;
}

function listOf(token: Tokens.List): ReactElement {
  const items = token.items.map((item, place) => <li key={place}>{itemOf(item)}</li>);
  return token.ordered ? <ol start={token.start === "" ? 1 : token.start}>{items}</ol> : <ul>{items}</ul>;
}

function itemOf(item: Tokens.ListItem): ReactNode {
  const box = item.task ? <span aria-label={item.checked ? "done" : "to do"} role="img">{item.checked ? "☑ " : "☐ "}</span> : null;
  const inner = item.tokens.filter((token) => token.type !== "checkbox").map((token, place) => (
    <Fragment key={place}>{token.type === "text" && token.tokens ? inline(token.tokens) : blockOf(token, false)}</Fragment>
  ));
  return <>{box}{inner}</>;
}

function tableOf(token: Tokens.Table): ReactElement {
  return (
    <div className="table-frame" tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead><tr>{token.header.map((cell, place) => <th key={place} scope="col">{inline(cell.tokens)}</th>)}</tr></thead>
        <tbody>
          {token.rows.map((row, line) => (
            <tr key={line}>{row.map((cell, place) => <td key={place}>{inline(cell.tokens)}</td>)}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function inline(tokens: readonly Token[] | undefined): ReactNode {
  return tokens?.map((token, place) => <Fragment key={place}>{span(token)}</Fragment>);
}

function span(token: Token): ReactNode {
  switch (token.type) {
    case "text":
    case "escape": return "tokens" in token && token.tokens ? inline(token.tokens) : unescaped(token.text as string);
    case "strong": return <strong>{inline(token.tokens)}</strong>;
    case "em": return <em>{inline(token.tokens)}</em>;
    case "del": return <del>{inline(token.tokens)}</del>;
    case "codespan": return <code>{token.text as string}</code>;
    case "br": return <br />;
    case "link": return link(token as Tokens.Link);
    case "image": return link({ ...(token as Tokens.Image), tokens: [] } as unknown as Tokens.Link, `image: ${(token as Tokens.Image).text || "without a name"}`);
    default: return token.raw;
  }
}

function link(token: Tokens.Link, words?: string): ReactNode {
  const href = safeHref(token.href);
  const inner = words ?? inline(token.tokens);
  if (href === null) return <span>{inner} <span className="text-muted">({token.href})</span></span>;
  return <a href={href} target="_blank" rel="noopener noreferrer nofollow" title={href}>{inner}</a>;
}

const ENTITIES: Readonly<Record<string, string>> = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'" };

/** Text may name a letter by its entity; code may not. */
function unescaped(text: string): string {
  return text.replace(/&(?:amp|lt|gt|quot|#39);/g, (entity) => ENTITIES[entity] ?? entity);
}
