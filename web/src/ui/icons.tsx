// Line icons on a grid of 24.
import type { ReactElement } from "react";

const PATHS = {
  plus: "M12 5v14M5 12h14",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14ZM20 20l-4-4",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v10H9zM5 15V5h10",
  check: "M5 13l4 4L19 7",
  retry: "M4 12a8 8 0 1 0 2.5-5.8M4 4v5h5",
  down: "M12 5v14M6 13l6 6 6-6",
  chevron: "M9 6l6 6-6 6",
  close: "M6 6l12 12M18 6 6 18",
  menu: "M4 7h16M4 12h16M4 17h16",
  panel: "M4 5h16v14H4zM15 5v14",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  edit: "M4 20h4L19 9l-4-4L4 16v4Z",
  trash: "M5 7h14M10 7V5h4v2M7 7l1 13h8l1-13",
  tool: "M14.5 6.5a4 4 0 0 0-5 5L4 17l3 3 5.5-5.5a4 4 0 0 0 5-5L15 12l-3-3 2.5-2.5Z",
  code: "M9 8l-4 4 4 4M15 8l4 4-4 4",
  swap: "M7 8h12l-3-3M17 16H5l3 3",
  hand: "M8 13V6a1.5 1.5 0 0 1 3 0v5-7a1.5 1.5 0 0 1 3 0v7-5a1.5 1.5 0 0 1 3 0v8a6 6 0 0 1-6 6 6 6 0 0 1-5-3l-2-3.5a1.4 1.4 0 0 1 2.3-1.5L8 15",
  eye: "M3 12s3.5-6 9-6 9 6 9 6-3.5 6-9 6-9-6-9-6ZM12 14.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5Z",
  clock: "M12 20a8 8 0 1 0 0-16 8 8 0 0 0 0 16ZM12 8v4l3 2",
  warn: "M12 4 3 19h18L12 4ZM12 10v4M12 16.5h.01",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6 7 7M17 17l1.4 1.4M18.4 5.6 17 7M7 17l-1.4 1.4",
  moon: "M19 14.5A7.5 7.5 0 0 1 9.5 5 7.5 7.5 0 1 0 19 14.5Z",
  screen: "M4 5h16v11H4zM9 20h6M12 16v4",
  help: "M9.5 9.5a2.5 2.5 0 1 1 3.5 2.3c-.7.3-1 .9-1 1.7M12 16.5h.01M12 20a8 8 0 1 0 0-16 8 8 0 0 0 0 16Z",
  people: "M9 12a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM3.5 19a5.5 5.5 0 0 1 11 0M16 6.5a3 3 0 0 1 0 5.5M17.5 14.5a5.5 5.5 0 0 1 3 4.5",
  list: "M8 7h12M8 12h12M8 17h12M4 7h.01M4 12h.01M4 17h.01",
  gauge: "M4 16a8 8 0 1 1 16 0M12 16l4-5",
  graph: "M6 8a2 2 0 1 0 0-4 2 2 0 0 0 0 4ZM18 14a2 2 0 1 0 0-4 2 2 0 0 0 0 4ZM8 20a2 2 0 1 0 0-4 2 2 0 0 0 0 4ZM8 6.5l8 4.5M16.2 13 9.8 17M6.4 8l1.2 8",
  timeline: "M4 6h7M8 12h9M12 18h8",
  mail: "M4 6h16v12H4zM4 7l8 6 8-6",
  outbox: "M4 13v6h16v-6M12 15V4M7 9l5-5 5 5",
  key: "M8 15a4 4 0 1 1 3.8-5.2L20 10v3h-2v2h-3v-2.5h-3.2A4 4 0 0 1 8 15Z",
  file: "M7 4h7l4 4v12H7zM14 4v4h4",
  clip: "M20 11.5 12.2 19a5 5 0 0 1-7-7l8-8a3.3 3.3 0 0 1 4.7 4.7l-8 8a1.7 1.7 0 0 1-2.4-2.4L14.5 7.5",
  leave: "M14 5H5v14h9M11 12h9M17 9l3 3-3 3",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 18, className = "" }: { name: IconName; size?: number; className?: string }): ReactElement {
  return (
    <svg
      viewBox="0 0 24 24" width={size} height={size} className={`shrink-0 ${className}`} aria-hidden="true"
      fill="none" stroke="currentColor" strokeWidth={name === "more" ? 2.6 : 1.7} strokeLinecap="round" strokeLinejoin="round"
    >
      <path d={PATHS[name]} />
    </svg>
  );
}
