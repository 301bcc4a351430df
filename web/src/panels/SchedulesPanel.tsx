// Schedules: messages that are sent later, or again and again. Times are shown in the zone of the viewer.
import { type FormEvent, type ReactElement, useState } from "react";
import type { NewSchedule } from "../api/client";
import type { Schedule } from "../api/types";
import { newId } from "../store/ids";
import { conversationHash } from "../store/route";
import { Badge, Button, ErrorMessage, Hint } from "../ui/common";
import { useApp } from "../ui/context";
import { formatDateTime, plural } from "../ui/format";
import { useAction, useQuery } from "../ui/requests";
import type { PanelProps } from "./Details";

const OWN_ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;
const FIELD = "w-full rounded-lg border border-line bg-page px-2.5 py-1.5 text-sm";
const KINDS = { in: "After a time", at: "At a time", cron: "Repeatedly" } as const;
const EXAMPLES = { in: "15m, 1h30m, 2d", at: "", cron: "0 9 * * 1-5" } as const;
type Kind = keyof typeof KINDS;

export default function SchedulesPanel({ conversation }: PanelProps): ReactElement {
  const app = useApp();
  const { value, error, reload } = useQuery(() => app.api.schedules(), "schedules");
  return (
    <div className="space-y-3 p-3">
      <p className="text-xs text-muted">Times in {OWN_ZONE}.</p>
      {conversation === null ? <Hint>Open a conversation to add a schedule.</Hint> : <AddSchedule key={conversation.id} sessionId={conversation.id} onAdded={reload} />}
      {error && <ErrorMessage text={error} retry={reload} />}
      <Button className="w-full" onClick={reload}>Refresh</Button>
      {value === null && !error && <Hint>Loading…</Hint>}
      {value?.schedules.length === 0 && <Hint>No schedules.</Hint>}
      <ul aria-label="Schedules" className="space-y-2">{value?.schedules.map((one) => <Entry key={one.schedule_id} schedule={one} onChange={reload} />)}</ul>
    </div>
  );
}

function AddSchedule({ sessionId, onAdded }: { sessionId: string; onAdded: () => void }): ReactElement {
  const app = useApp();
  const [kind, setKind] = useState<Kind>("in");
  const [when, setWhen] = useState("");
  const [text, setText] = useState("");
  const [id, setId] = useState(newId);
  const { busy, error, run } = useAction();
  const add = (event: FormEvent): void => {
    event.preventDefault();
    const timing: Partial<NewSchedule> = { [kind]: when.trim(), ...(kind !== "in" && { timezone: OWN_ZONE }) };
    // With the same id, a second attempt after a lost response creates nothing.
    void run(() => app.api.createSchedule({ session_id: sessionId, text, schedule_id: id, ...timing })).then((done) => {
      if (!done) return;
      setText("");
      setWhen("");
      setId(newId());
      onAdded();
    });
  };
  return (
    <form aria-label="Add a schedule" onSubmit={add} className="space-y-2 rounded-xl border border-line p-3">
      <label className="block text-xs font-medium">Message
        <textarea required rows={2} className={FIELD} value={text} onChange={(event) => setText(event.target.value)} />
      </label>
      <div className="flex gap-2">
        <label className="min-w-0 flex-1 text-xs font-medium">When
          <select className={FIELD} value={kind} onChange={(event) => { setKind(event.target.value as Kind); setWhen(""); }}>
            {Object.entries(KINDS).map(([name, title]) => <option key={name} value={name}>{title}</option>)}
          </select>
        </label>
        <label className="min-w-0 flex-1 text-xs font-medium">{kind === "in" ? "Duration" : kind === "at" ? "Time" : "Cron expression"}
          <input
            required type={kind === "at" ? "datetime-local" : "text"} placeholder={EXAMPLES[kind]} className={FIELD} value={when}
            onChange={(event) => setWhen(event.target.value)}
          />
        </label>
      </div>
      {kind === "cron" && <p className="text-xs text-muted">Minute, hour, day of month, month, day of week. <code>{EXAMPLES.cron}</code> is 9:00 from Monday to Friday.</p>}
      <Button className="w-full" type="submit" tone="strong" disabled={busy}>Add schedule</Button>
      {error && <p role="alert" className="text-xs text-bad wrap-anywhere">{error}</p>}
    </form>
  );
}

function Entry({ schedule, onChange }: { schedule: Schedule; onChange: () => void }): ReactElement {
  const app = useApp();
  const { schedule_id: id, status } = schedule;
  const [confirming, setConfirming] = useState(false);
  const { busy, error, run } = useAction();
  const act = (work: () => Promise<unknown>): void => {
    void run(work).then((done) => {
      setConfirming(false);
      if (!done) return;
      app.expectUpdates();
      onChange();
    });
  };
  return (
    <li className="rounded-xl border border-line p-3 text-sm">
      <div className="flex items-center justify-between gap-2">
        <strong className="min-w-0 font-medium wrap-anywhere">{schedule.title || "(no text)"}</strong>
        <Badge tone={status === "active" ? "accent" : "plain"}>{status}</Badge>
      </div>
      <p className="mt-1 text-xs text-muted wrap-anywhere">{describe(schedule)}</p>
      <p className="mt-1 flex flex-wrap justify-between gap-x-2 text-xs">
        <span>{schedule.next_at ? `Next: ${formatDateTime(Date.parse(schedule.next_at))}` : (schedule.end_reason ? `Ended: ${schedule.end_reason}` : "No next time")}</span>
        <a className="text-accent-ink underline" href={conversationHash(schedule.session_id)}>Open conversation</a>
      </p>
      {schedule.last_error && <p className="mt-1 text-xs text-bad wrap-anywhere">{schedule.last_error}</p>}
      {confirming ? (
        <div className="mt-2 flex flex-wrap items-center gap-2 rounded-lg bg-bad-soft px-2.5 py-2">
          <p className="w-full text-bad">Delete this schedule? Messages that it has sent stay.</p>
          <button type="button" autoFocus disabled={busy} onClick={() => act(() => app.api.deleteSchedule(id))} className="rounded-md bg-bad px-2.5 py-1 font-medium text-page">Delete schedule</button>
          <button type="button" disabled={busy} onClick={() => setConfirming(false)} className="rounded-md border border-line bg-surface px-2.5 py-1">Cancel</button>
        </div>
      ) : (
        <div className="mt-2 flex flex-wrap items-center gap-2">
          {status === "active" && <Button className="py-1!" disabled={busy} onClick={() => act(() => app.api.changeSchedule(id, "pause"))}>Pause</Button>}
          {status === "paused" && <Button className="py-1!" disabled={busy} onClick={() => act(() => app.api.changeSchedule(id, "resume"))}>Resume</Button>}
          <Button className="py-1!" disabled={busy} onClick={() => act(() => app.api.changeSchedule(id, "run"))}>Send now</Button>
          <Button className="py-1!" tone="bad" disabled={busy} onClick={() => setConfirming(true)}>Delete</Button>
        </div>
      )}
      {error && <p role="alert" className="mt-1 text-xs text-bad">{error}</p>}
    </li>
  );
}

function describe(schedule: Schedule): string {
  const when = schedule.cron !== null ? `${schedule.cron} (${schedule.timezone})` : "once";
  const who = schedule.kind === "reminder" ? "reminder of the agent · " : "";
  const failed = schedule.failures > 0 ? `, ${plural(schedule.failures, "failure")}` : "";
  const skipped = schedule.skipped > 0 ? `, ${schedule.skipped} skipped` : "";
  const sent = schedule.runs > 0 ? `sent ${plural(schedule.runs, "time")}` : "not sent yet";
  return `${who}${when} · ${sent}${failed}${skipped}`;
}
