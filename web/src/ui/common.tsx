// Small components that many views share.
import { type ButtonHTMLAttributes, type ReactElement, type ReactNode, useEffect, useState } from "react";
import { formatNumber } from "./format";
import { Icon, type IconName } from "./icons";

type ButtonProps = ButtonHTMLAttributes<HTMLButtonElement> & { tone?: "plain" | "strong" | "bad" };

const TONES = {
  plain: "border border-line bg-surface hover:bg-sunken text-ink",
  strong: "bg-accent text-white hover:brightness-110 border border-transparent",
  bad: "border border-line bg-surface text-bad hover:bg-bad-soft",
};

export function Button({ tone = "plain", className = "", ...rest }: ButtonProps): ReactElement {
  const style = `inline-flex items-center justify-center gap-1.5 rounded-lg px-3 py-1.5 text-sm font-medium transition-colors disabled:opacity-55 ${TONES[tone]}`;
  return <button type="button" className={`${style} ${className}`} {...rest} />;
}

type IconButtonProps = ButtonHTMLAttributes<HTMLButtonElement> & { icon: IconName; text: string; label?: string; stacked?: boolean };

/** An icon with its text; `stacked` puts a small text below the icon in narrow windows. `label` may say more than the text. */
export function IconButton({ icon, text, label = text, stacked = false, className = "", ...rest }: IconButtonProps): ReactElement {
  const style = "inline-flex h-9 min-w-9 items-center justify-center gap-1.5 rounded-lg px-2 text-sm whitespace-nowrap text-muted transition-colors hover:bg-sunken hover:text-ink disabled:opacity-50";
  const narrow = stacked ? "max-lg:h-11 max-lg:flex-col max-lg:gap-0.5 max-lg:px-1 max-lg:text-[10px] max-lg:leading-none" : "";
  return (
    <button type="button" aria-label={label} title={label} className={`${style} ${narrow} ${className}`} {...rest}>
      <Icon name={icon} size={17} /> {text}
    </button>
  );
}

const BADGES = {
  plain: "bg-sunken text-muted",
  accent: "bg-accent-soft text-accent-ink",
  strong: "bg-accent text-white",
  good: "bg-good-soft text-good",
  warn: "bg-warn-soft text-warn",
  bad: "bg-bad-soft text-bad",
};

export function Badge({ tone = "plain", children }: { tone?: keyof typeof BADGES; children: ReactNode }): ReactElement {
  return (
    <span className={`inline-flex items-center gap-1 rounded-full px-2 py-px text-xs font-medium whitespace-nowrap ${BADGES[tone]}`}>
      {children}
    </span>
  );
}

export function Spinner({ size = 14 }: { size?: number }): ReactElement {
  return (
    <svg viewBox="0 0 24 24" width={size} height={size} className="spinning shrink-0" aria-hidden="true" fill="none" stroke="currentColor" strokeWidth="2.5" strokeLinecap="round">
      <path d="M12 3a9 9 0 1 1-9 9" />
    </svg>
  );
}

const COPIED_MS = 1500;

export function CopyButton({ text, label }: { text: () => string; label: string }): ReactElement {
  const [copied, setCopied] = useState<boolean | null>(null);
  useEffect(() => {
    if (copied === null) return;
    const timer = setTimeout(() => setCopied(null), COPIED_MS);
    return () => clearTimeout(timer);
  }, [copied]);
  const copy = (): void => {
    copyText(text()).then(setCopied, () => setCopied(false));
  };
  const icon = copied === null ? "copy" : copied ? "check" : "warn";
  const word = copied === null ? "Copy" : copied ? "Copied" : "Copy failed";
  return (
    <button type="button" aria-label={copied === null ? label : word} title={label} onClick={copy} className="inline-flex h-7 items-center gap-1 rounded-lg px-1.5 text-xs font-normal text-muted transition-colors hover:bg-sunken hover:text-ink">
      <Icon name={icon} size={14} /> {word}
    </button>
  );
}

/** The clipboard API is not available over plain HTTP; `execCommand` still works there. */
async function copyText(text: string): Promise<boolean> {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return true;
  }
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

const HUES = [262, 199, 152, 28, 330, 95, 225, 8];

/** A user or an agent, by colour and initial; the same name always gets the same colour. */
export function Avatar({ name, size = 26 }: { name: string; size?: number }): ReactElement {
  const hue = HUES[[...name].reduce((hash, character) => (hash * 31 + character.charCodeAt(0)) >>> 0, 7) % HUES.length] ?? 0;
  return (
    <span
      aria-hidden="true" className="inline-flex shrink-0 items-center justify-center rounded-full text-xs font-semibold text-white uppercase select-none"
      style={{ width: size, height: size, background: `hsl(${hue} 46% 40%)` }}
    >
      {name.slice(0, 1)}
    </span>
  );
}

const TEXT_SHOWN_MAX_CHARS = 50_000; // the browser takes seconds to lay out some longer texts

/** A text of any length: a long one is cut until the user asks for the rest. */
export function LongText({ text }: { text: string }): ReactElement {
  const [showAll, setShowAll] = useState(false);
  if (showAll || text.length <= TEXT_SHOWN_MAX_CHARS) return <>{text}</>;
  return (
    <>
      {text.slice(0, TEXT_SHOWN_MAX_CHARS)}…{"\n"}
      <button type="button" className="font-sans text-sm font-medium text-accent-ink underline" onClick={() => setShowAll(true)}>Show all {formatNumber(text.length)} characters</button>
    </>
  );
}

export function Hint({ children }: { children: ReactNode }): ReactElement {
  return <p className="px-1 py-6 text-center text-sm text-muted">{children}</p>;
}

export function ErrorMessage({ text, retry, label = "Try again" }: { text: string; retry?: () => void; label?: string }): ReactElement {
  return (
    <div role="alert" className="flex items-start gap-2 rounded-lg bg-bad-soft px-3 py-2 text-sm text-bad">
      <Icon name="warn" size={16} className="mt-0.5" />
      <span className="min-w-0 flex-1 wrap-anywhere">{text}</span>
      {retry && <button type="button" className="font-medium underline" onClick={retry}>{label}</button>}
    </div>
  );
}
