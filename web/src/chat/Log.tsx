// The log, of which only what is in sight is in the document. It stays at its end while one is there.
import { useVirtualizer } from "@tanstack/react-virtual";
import { type ReactElement, type RefObject, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import type { Session } from "../fold/state";
import type { OutgoingList } from "../store/outgoing";
import { Icon } from "../ui/icons";
import { RowView } from "./RowView";
import { type Row, rowsOf } from "./rows";

const NEAR_END_PX = 90;
const OVERSCAN = 6;

interface Props {
  session: Session;
  outgoing: OutgoingList;
}

export function Log({ session, outgoing }: Props): ReactElement {
  const frame = useRef<HTMLDivElement>(null);
  const known = useRef(new Map<string, Row>());
  const rows = useMemo(() => rowsOf(session, outgoing, known.current), [session, outgoing]);
  const log = useVirtualizer({
    count: rows.length,
    getScrollElement: () => frame.current,
    estimateSize: (place) => guess(rows[place]),
    getItemKey: (place) => rows[place]?.key ?? place,
    overscan: OVERSCAN,
    paddingStart: 24,
    paddingEnd: 16,
  });
  const { away, look, toEnd } = useEnd(frame);
  const sent = outgoing.at(-1)?.clientId;
  useEffect(() => {
    if (sent !== undefined) toEnd();
  }, [sent]);
  return (
    <div className="relative min-h-0 flex-1">
      <div ref={frame} onScroll={look} tabIndex={0} role="log" aria-live="off" aria-label="Conversation" className="absolute inset-0 overflow-y-auto overflow-x-hidden [overflow-anchor:none]">
        <div className="relative mx-auto w-full max-w-3xl" style={{ height: log.getTotalSize() }}>
          {log.getVirtualItems().map((shown) => {
            const row = rows[shown.index];
            return row === undefined ? null : (
              <div key={shown.key} ref={log.measureElement} data-index={shown.index} className="absolute inset-x-0 top-0 px-4 sm:px-6" style={{ transform: `translateY(${shown.start}px)` }}>
                <RowView row={row} />
              </div>
            );
          })}
        </div>
      </div>
      {away && (
        <button
          type="button" onClick={toEnd}
          className="absolute bottom-3 left-1/2 inline-flex -translate-x-1/2 items-center gap-1.5 rounded-full border border-line bg-raised px-3.5 py-1.5 text-sm font-medium shadow-md hover:bg-sunken"
        >
          <Icon name="down" size={15} /> Latest
        </button>
      )}
    </div>
  );
}

interface End {
  away: boolean;
  look: () => void;
  toEnd: () => void;
}

/** Keeps the end in sight while rows grow and come, until one scrolls up; and again once one is back there. */
function useEnd(frame: RefObject<HTMLDivElement | null>): End {
  const [away, setAway] = useState(false);
  const pinned = useRef(true);
  const last = useRef(0);
  useLayoutEffect(() => {
    const box = frame.current;
    if (box === null || !pinned.current) return;
    box.scrollTop = box.scrollHeight;
    last.current = box.scrollTop;
  });
  const look = (): void => {
    const box = frame.current;
    if (box === null) return;
    const near = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END_PX;
    if (box.scrollTop < last.current - 1) pinned.current = false;
    else if (near) pinned.current = true;
    last.current = box.scrollTop;
    setAway(!pinned.current && !near);
  };
  const toEnd = (): void => {
    pinned.current = true;
    const box = frame.current;
    if (box !== null) box.scrollTop = box.scrollHeight;
    setAway(false);
  };
  return { away, look, toEnd };
}

/** How high a row is, before it has been seen. */
function guess(row: Row | undefined): number {
  if (row?.kind !== "item") return 64;
  const { item } = row;
  if (item.kind === "answer" || item.kind === "user") return 72 + 24 * Math.ceil(item.text.length / 85);
  if (item.kind === "approval" || item.kind === "subagent") return 170;
  return item.kind === "tool" && item.block !== null ? 220 : 52;
}
