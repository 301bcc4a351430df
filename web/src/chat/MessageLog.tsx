// The messages of a conversation. Only visible rows are in the document. The log stays at its end while the user is there.
import { useVirtualizer } from "@tanstack/react-virtual";
import { type ReactElement, type RefObject, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import type { SessionState } from "../fold/state";
import type { PendingMessages } from "../store/sender";
import { ErrorBoundary } from "../ui/boundary";
import { Icon } from "../ui/icons";
import { type Row, rowsOf } from "./rows";
import { FailedRow, RowView } from "./RowView";

const NEAR_END_PX = 90;
const OVERSCAN = 6;

interface Props {
  session: SessionState;
  pending: PendingMessages;
}

export function MessageLog({ session, pending }: Props): ReactElement {
  const frame = useRef<HTMLDivElement>(null);
  const rowCache = useRef(new Map<string, Row>());
  const rows = useMemo(() => rowsOf(session, pending, rowCache.current), [session, pending]);
  const log = useVirtualizer({
    count: rows.length,
    getScrollElement: () => frame.current,
    estimateSize: (index) => estimateHeight(rows[index]),
    getItemKey: (index) => rows[index]?.key ?? index,
    overscan: OVERSCAN,
    paddingStart: 24,
    paddingEnd: 16,
  });
  const { isAway, onScroll, scrollToEnd } = useStickToEnd(frame);
  const sent = pending.at(-1)?.clientId;
  useEffect(() => {
    if (sent !== undefined) scrollToEnd();
  }, [sent]);
  return (
    <div className="relative min-h-0 flex-1">
      <div ref={frame} onScroll={onScroll} tabIndex={0} role="log" aria-live="off" aria-label="Conversation" className="absolute inset-0 overflow-y-auto overflow-x-hidden [overflow-anchor:none]">
        <div className="relative mx-auto w-full max-w-3xl" style={{ height: log.getTotalSize() }}>
          {log.getVirtualItems().map((virtual) => {
            const row = rows[virtual.index];
            return row === undefined ? null : (
              <div key={virtual.key} ref={log.measureElement} data-index={virtual.index} className="absolute inset-x-0 top-0 px-4 sm:px-6" style={{ transform: `translateY(${virtual.start}px)` }}>
                <ErrorBoundary subject={row} fallback={() => <FailedRow row={row} />}><RowView row={row} /></ErrorBoundary>
              </div>
            );
          })}
        </div>
      </div>
      {isAway && (
        <button
          type="button" onClick={scrollToEnd}
          className="absolute bottom-3 left-1/2 inline-flex -translate-x-1/2 items-center gap-1.5 rounded-full border border-line bg-raised px-3.5 py-1.5 text-sm font-medium shadow-md hover:bg-sunken"
        >
          <Icon name="down" size={15} /> Jump to latest
        </button>
      )}
    </div>
  );
}

interface StickToEnd {
  isAway: boolean;
  onScroll: () => void;
  scrollToEnd: () => void;
}

/** Keeps the end visible while rows are added and grow, until the user scrolls up, and again when the user is back at the end. */
function useStickToEnd(frame: RefObject<HTMLDivElement | null>): StickToEnd {
  const [isAway, setIsAway] = useState(false);
  const pinned = useRef(true);
  const last = useRef(0);
  useLayoutEffect(() => {
    const element = frame.current;
    if (element === null || !pinned.current) return;
    element.scrollTop = element.scrollHeight;
    last.current = element.scrollTop;
  });
  const onScroll = (): void => {
    const element = frame.current;
    if (element === null) return;
    const near = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_END_PX;
    if (element.scrollTop < last.current - 1) pinned.current = false;
    else if (near) pinned.current = true;
    last.current = element.scrollTop;
    setIsAway(!pinned.current && !near);
  };
  const scrollToEnd = (): void => {
    pinned.current = true;
    const element = frame.current;
    if (element !== null) element.scrollTop = element.scrollHeight;
    setIsAway(false);
  };
  return { isAway, onScroll, scrollToEnd };
}

/** The height of a row before it is measured. */
function estimateHeight(row: Row | undefined): number {
  if (row?.kind !== "item") return 64;
  const { item } = row;
  if (item.kind === "answer" || item.kind === "user") return 72 + 24 * Math.ceil(item.text.length / 85);
  if (item.kind === "approval" || item.kind === "budget" || item.kind === "subagent") return 170;
  return item.kind === "tool" && item.block !== null ? 220 : 52;
}
