// The server's shapes under the names that the page uses.
import type { components } from "./schema";

type Shapes = components["schemas"];

export type Event = Shapes["ApiEvent"];
export type EventPage = Shapes["ApiEventPage"];
export type SessionItem = Shapes["SessionSummary"];
export type SessionList = Shapes["SessionList"];
export type SessionShown = Shapes["SessionInfo"];
export type SessionMade = Shapes["SessionSettings"];
export type Accepted = Shapes["AcceptedResponse"];
export type Agent = Shapes["TeamAgent"];
export type Agents = Shapes["TeamAgentList"];
export type Scenarios = Shapes["ScenarioList"];
export type Tool = Shapes["ToolInfo"];
export type Tools = Shapes["ToolList"];
export type ToolsStatus = Shapes["ToolsStatus"];
export type ToolDone = Shapes["ToolRunResponse"];
export type SessionUsage = Shapes["SessionUsage"];
export type Letter = Shapes["DeadLetterInfo"];
export type LetterList = Shapes["DeadLetterPage"];
export type OutboxItem = Shapes["OutboxItemInfo"];
export type OutboxList = Shapes["OutboxItemList"];
export type Approval = Shapes["ApprovalInfo"];
export type Approvals = Shapes["ApprovalList"];
export type Me = Shapes["PrincipalInfo"];
