// The server's schemas under the names that the page uses. No other file reads the generated `schema.d.ts`.
import type { components } from "./schema";

type Schemas = components["schemas"];

export type SessionEvent = Schemas["ApiEvent"];
export type EventPage = Schemas["ApiEventPage"];
export type SessionSummary = Schemas["SessionSummary"];
export type SessionList = Schemas["SessionList"];
export type SessionCounts = Schemas["SessionCounts"];
export type SessionState = "waiting" | "running" | "failed";
export type SessionDetails = Schemas["SessionInfo"];
export type CreatedSession = Schemas["SessionSettings"];
export type AcceptedMessage = Schemas["AcceptedResponse"];
export type Agent = Schemas["TeamAgent"];
export type AgentList = Schemas["TeamAgentList"];
export type ScenarioList = Schemas["ScenarioList"];
export type Tool = Schemas["ToolInfo"];
export type ToolList = Schemas["ToolList"];
export type ToolsStatus = Schemas["ToolsStatus"];
export type ToolResult = Schemas["ToolRunResponse"];
export type SessionUsage = Schemas["SessionUsage"];
export type DeadLetter = Schemas["DeadLetterInfo"];
export type DeadLetterList = Schemas["DeadLetterPage"];
export type OutboxItem = Schemas["OutboxItemInfo"];
export type OutboxList = Schemas["OutboxItemList"];
export type Approval = Schemas["ApprovalInfo"];
export type ApprovalList = Schemas["ApprovalList"];
export type FileInfo = Schemas["FileInfo"];
export type FilePage = Schemas["FileList"];
export type UsageReport = Schemas["UsageReportInfo"];
export type Budget = Schemas["BudgetInfo"];
export type Schedule = Schemas["ScheduleInfo"];
export type ScheduleList = Schemas["ScheduleList"];
export type CurrentUser = Schemas["PrincipalInfo"];
