// The server's shapes under the names that the page uses.
import type { components } from "./schema";

type Shapes = components["schemas"];

export type Event = Shapes["Event"];
export type EventPage = Shapes["Events"];
export type SessionItem = Shapes["SessionItem"];
export type SessionList = Shapes["SessionList"];
export type SessionShown = Shapes["SessionShown"];
export type SessionMade = Shapes["SessionMade"];
export type Accepted = Shapes["Accepted"];
export type Agent = Shapes["AgentShown"];
export type Agents = Shapes["AgentsShown"];
export type Scenarios = Shapes["ScenariosShown"];
export type Tool = Shapes["ToolShown"];
export type Tools = Shapes["ToolsShown"];
export type ToolsStatus = Shapes["ToolsStatus"];
export type ToolDone = Shapes["ToolDone"];
export type SessionUsage = Shapes["Usage"];
export type Letter = Shapes["Letter"];
export type LetterList = Shapes["LetterList"];
export type OutboxItem = Shapes["ItemShown"];
export type OutboxList = Shapes["ItemsShown"];
export type Approval = Shapes["ApprovalShown"];
export type Approvals = Shapes["ApprovalsShown"];
export type Me = Shapes["Me"];
