// A code block with its language, a copy button, and syntax highlighting that loads when it is first needed.
import { lazy, memo, type ReactElement, Suspense } from "react";
import { CopyButton, LongText } from "./common";

// If the highlighter cannot be loaded, the code stays plain.
const HighlightedCode = lazy(() => import("./HighlightedCode").catch(() => ({ default: ({ code }: { code: string }) => code })));
const HIGHLIGHT_MAX_CHARS = 20_000; // highlighting longer code would block the page

interface Props {
  code: string;
  language: string;
  growing?: boolean;
}

export const CodeBlock = memo(function CodeBlock({ code, language, growing = false }: Props): ReactElement {
  const name = language.split(/\s/)[0] ?? "";
  return (
    <figure className="my-3 overflow-hidden rounded-lg border border-line bg-sunken">
      <figcaption className="flex items-center justify-between border-b border-line py-0.5 pr-1 pl-3 text-xs text-muted">
        <span>{name || "text"}</span>
        <CopyButton text={() => code} label="Copy code" />
      </figcaption>
      <pre tabIndex={0} aria-label={`Code${name && `, ${name}`}`} className="overflow-x-auto px-3 py-2.5 font-mono text-[13px] leading-relaxed">
        <code>
          {growing || name === "" || code.length > HIGHLIGHT_MAX_CHARS ? <LongText text={code} /> : (
            <Suspense fallback={code}><HighlightedCode code={code} language={name} /></Suspense>
          )}
        </code>
      </pre>
    </figure>
  );
});
