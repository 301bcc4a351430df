// Made by `make page-types` from the gateway's OpenAPI document; not to be edited.
export type paths = Record<string, never>;
export type webhooks = Record<string, never>;
export type components = {
    schemas: {
        /**
         * Accepted
         * @description The run goes on: follow the session after `seq`. `message_id` is the question's.
         * @example {
         *       "message_id": "msg-8c…",
         *       "seq": 2,
         *       "session_id": "s-1",
         *       "status": "in_progress"
         *     }
         */
        Accepted: {
            /** Message Id */
            message_id: string;
            /**
             * Notice
             * @description present only when the sender should know something
             */
            notice?: string | null;
            /** Seq */
            seq: number;
            /** Session Id */
            session_id: string;
            /**
             * Status
             * @enum {string}
             */
            status: "accepted" | "in_progress";
        };
        /**
         * Agent
         * @description An agent that is known, or served now. `lanes`: conversations with mail for it; `pending`: that mail.
         */
        Agent: {
            /** Alive */
            alive: boolean;
            lanes: components["schemas"]["LaneCounts"];
            /** Name */
            name: string;
            /** Pending */
            pending: number;
            /** Workers */
            workers: string[];
        };
        /** AgentList */
        AgentList: {
            /** Agents */
            agents: components["schemas"]["Agent"][];
        };
        /** AgentShown */
        AgentShown: {
            /**
             * Alive
             * @description whether a worker serves it now; null when that is not known
             */
            alive: boolean | null;
            /** Handoffs */
            handoffs: string[];
            /** Mcp */
            mcp: string[];
            /** Model */
            model: string | null;
            /** Name */
            name: string;
            /** Role */
            role: string;
            /** Scenarios */
            scenarios: string[];
            /**
             * Tools
             * @description the tools that it may use, and no others
             */
            tools: string[];
            /** Voice */
            voice: string | null;
        };
        /** AgentsShown */
        AgentsShown: {
            /** Agents */
            agents: components["schemas"]["AgentShown"][];
        };
        /**
         * Answer
         * @description What came of a message. `message_id` is the answer's; the question's is `reply_to`.
         * @example {
         *       "events": [],
         *       "final_output": "In Oslo it is …",
         *       "message_id": "run-5f…/1",
         *       "reply_to": "msg-8c…",
         *       "seq": 2,
         *       "session_id": "s-1",
         *       "tool_calls": [],
         *       "usage": {
         *         "total_tokens": 42
         *       }
         *     }
         */
        Answer: {
            /** Events */
            events: components["schemas"]["Event"][];
            /** Final Output */
            final_output: string;
            /** Message Id */
            message_id: string | null;
            /** Reply To */
            reply_to: string;
            /**
             * Seq
             * @description of the question
             */
            seq: number;
            /** Session Id */
            session_id: string;
            /** Tool Calls */
            tool_calls: components["schemas"]["ToolCall"][];
            /** Usage */
            usage: {
                [key: string]: unknown;
            } | null;
        };
        /**
         * BuiltinStatus
         * @description `enabled` is what the settings say; `available`, whether it would work; `missing`, which settings it wants.
         */
        BuiltinStatus: {
            /** Available */
            available: boolean;
            /** Enabled */
            enabled: boolean;
            /** Missing */
            missing: string[];
            /** Name */
            name: string;
            /** Reason */
            reason: string | null;
        };
        /**
         * Conversation
         * @description A conversation as a list shows it.
         */
        Conversation: {
            /** Active Agent */
            active_agent: string | null;
            /** Conversation Id */
            conversation_id: string;
            /**
             * Last Active At
             * Format: date-time
             */
            last_active_at: string;
            /** Last Seq */
            last_seq: number;
            /** Run Status */
            run_status: string | null;
            /** Title */
            title: string | null;
            /** Usage */
            usage: {
                [key: string]: unknown;
            } | null;
        };
        /** ConversationList */
        ConversationList: {
            /** Conversations */
            conversations: components["schemas"]["Conversation"][];
            /**
             * Next
             * @description give it back as `before` to go on
             */
            next: string | null;
        };
        /** Done */
        Done: {
            /**
             * Status
             * @default ok
             * @constant
             */
            status: "ok";
        };
        /**
         * Event
         * @description One record of a session.
         * @example {
         *       "data": {
         *         "sender": "user:local"
         *       },
         *       "final": true,
         *       "message_id": "m-1",
         *       "role": "user",
         *       "seq": 2,
         *       "session_id": "s-1",
         *       "text": "weather in Oslo",
         *       "timestamp_ms": 1790000000000,
         *       "type": "message"
         *     }
         */
        Event: {
            /** Agent Id */
            agent_id: string | null;
            /** Data */
            data: {
                [key: string]: unknown;
            };
            /** Final */
            final: boolean | null;
            /** Message Id */
            message_id: string | null;
            /** Reason */
            reason: string | null;
            /** Role */
            role: string | null;
            /** Seq */
            seq: number;
            /** Session Id */
            session_id: string;
            /** Text */
            text: string | null;
            /** Timestamp Ms */
            timestamp_ms: number;
            /** Token Seq */
            token_seq: number | null;
            /** Type */
            type: string;
        };
        /** EventPage */
        EventPage: {
            /** Conversation Id */
            conversation_id: string;
            /**
             * Events
             * @description each as it was recorded, with its `seq`
             */
            events: {
                [key: string]: unknown;
            }[];
            /** Has More */
            has_more: boolean;
            /** Next Since */
            next_since: number;
        };
        /**
         * Events
         * @example {
         *       "events": [],
         *       "has_more": false,
         *       "next_since": 7,
         *       "session_id": "s-1"
         *     }
         */
        Events: {
            /** Events */
            events: components["schemas"]["Event"][];
            /** Has More */
            has_more: boolean;
            /** Next Since */
            next_since: number;
            /** Session Id */
            session_id: string;
        };
        /** Health */
        Health: {
            /**
             * Status
             * @default ok
             * @constant
             */
            status: "ok";
        };
        /** LaneCounts */
        LaneCounts: {
            /**
             * Held
             * @default 0
             */
            held: number;
            /**
             * Later
             * @default 0
             */
            later: number;
            /**
             * Parked
             * @default 0
             */
            parked: number;
            /**
             * Ready
             * @default 0
             */
            ready: number;
        };
        /** LastRun */
        LastRun: {
            /** Agent Id */
            agent_id: string | null;
            /**
             * Message Id
             * @description of the message that it answers
             */
            message_id: string | null;
            /** Status */
            status: string;
        };
        /**
         * Letter
         * @description Mail that nobody could answer.
         */
        Letter: {
            /** Agent */
            agent: string;
            /** Attempts */
            attempts: number;
            /**
             * Buried At
             * Format: date-time
             */
            buried_at: string;
            /** Conversation Id */
            conversation_id: string;
            /** Envelope Id */
            envelope_id: string;
            /** Reason */
            reason: string;
            /** Seq */
            seq: number;
            /** Text */
            text: string | null;
        };
        /** LetterList */
        LetterList: {
            /** Letters */
            letters: components["schemas"]["Letter"][];
            /**
             * Next
             * @description give it back as `after` to go on
             */
            next: number | null;
        };
        /** Ready */
        Ready: {
            /** Engine */
            engine: string;
            /**
             * Status
             * @default ready
             * @constant
             */
            status: "ready";
        };
        /**
         * Routed
         * @description Who answers, and why. `by` is who decided; `fallback`, why the supervisor did not, when it was asked.
         * @example {
         *       "by": "keywords",
         *       "changed": true,
         *       "chosen_root": "support",
         *       "evidence": {
         *         "support": [
         *           "broken"
         *         ]
         *       },
         *       "reason": "support: broken",
         *       "scores": {
         *         "general": 0,
         *         "sales": 0,
         *         "support": 3
         *       }
         *     }
         */
        Routed: {
            /** By */
            by: string;
            /** Changed */
            changed: boolean;
            /** Chosen Root */
            chosen_root: string;
            /** Evidence */
            evidence: {
                [key: string]: string[];
            };
            /** Fallback */
            fallback: string | null;
            /** Reason */
            reason: string;
            /** Scores */
            scores: {
                [key: string]: number;
            };
        };
        /** ScenarioShown */
        ScenarioShown: {
            /** Agents */
            agents: string[];
            /** Id */
            id: string;
            /** Root */
            root: string;
            /** Supervisor */
            supervisor: string | null;
            /** Title */
            title: string;
        };
        /** ScenariosShown */
        ScenariosShown: {
            /** Default */
            default: string;
            /** Scenarios */
            scenarios: components["schemas"]["ScenarioShown"][];
        };
        /**
         * Sent
         * @description Accepted. `seq` is that of the message in the conversation's stream: follow after it to see the answer.
         */
        Sent: {
            /** Envelope Id */
            envelope_id: string;
            /**
             * Notice
             * @description present only when the sender should know something
             */
            notice?: string | null;
            /** Seq */
            seq: number;
            /**
             * Status
             * @constant
             */
            status: "ok";
            /** Topic */
            topic: string;
        };
        /**
         * SessionItem
         * @description A session as a list shows it.
         * @example {
         *       "active_agent_id": "general",
         *       "last_active_ms": 1790000000000,
         *       "last_seq": 9,
         *       "owner": "user:local",
         *       "run_status": "finished",
         *       "scenario_id": "default",
         *       "session_id": "s-1",
         *       "title": "Oslo"
         *     }
         */
        SessionItem: {
            /** Active Agent Id */
            active_agent_id: string | null;
            /** Last Active Ms */
            last_active_ms: number;
            /** Last Seq */
            last_seq: number;
            /** Owner */
            owner: string | null;
            /** Run Status */
            run_status: string | null;
            /** Scenario Id */
            scenario_id: string | null;
            /** Session Id */
            session_id: string;
            /** Title */
            title: string | null;
        };
        /** SessionList */
        SessionList: {
            /**
             * Next
             * @description give it back as `before` to go on
             */
            next: string | null;
            /** Sessions */
            sessions: components["schemas"]["SessionItem"][];
        };
        /**
         * SessionMade
         * @example {
         *       "agent_name": "general",
         *       "session_id": "s-1",
         *       "tools": [
         *         "WebSearchTool",
         *         "echo_context",
         *         "weather"
         *       ]
         *     }
         */
        SessionMade: {
            /** Agent Name */
            agent_name: string;
            /** Model */
            model: string | null;
            /** Overlay */
            overlay: string | null;
            /** Session Id */
            session_id: string;
            /** Tools */
            tools: string[];
        };
        /**
         * SessionShown
         * @description A session as it stands.
         * @example {
         *       "active_agent_id": "general",
         *       "last_active_ms": 1790000000000,
         *       "last_run": {
         *         "agent_id": "general",
         *         "message_id": "msg-8c…",
         *         "status": "finished"
         *       },
         *       "last_seq": 9,
         *       "owner": "user:local",
         *       "scenario_id": "default",
         *       "session_id": "s-1",
         *       "state": "idle",
         *       "title": "Oslo",
         *       "usage": {
         *         "total_tokens": 42
         *       }
         *     }
         */
        SessionShown: {
            /** Active Agent Id */
            active_agent_id: string | null;
            /** Last Active Ms */
            last_active_ms: number;
            last_run: components["schemas"]["LastRun"] | null;
            /** Last Seq */
            last_seq: number;
            /** Overlay */
            overlay?: string | null;
            /** Owner */
            owner: string | null;
            /** Scenario Id */
            scenario_id: string | null;
            /** Session Id */
            session_id: string;
            /**
             * State
             * @enum {string}
             */
            state: "idle" | "running";
            /** Title */
            title: string | null;
            /** Usage */
            usage?: {
                [key: string]: unknown;
            } | null;
        };
        /**
         * SessionStopping
         * @example {
         *       "agent_id": "general",
         *       "mode": "now",
         *       "session_id": "s-1",
         *       "status": "accepted"
         *     }
         */
        SessionStopping: {
            /** Agent Id */
            agent_id: string;
            /** Mode */
            mode: string;
            /** Session Id */
            session_id: string;
            /**
             * Status
             * @default accepted
             * @constant
             */
            status: "accepted";
        };
        /** Stopping */
        Stopping: {
            /** Agent */
            agent: string;
            /** Envelope Id */
            envelope_id: string;
            /** Seq */
            seq: number;
            /**
             * Status
             * @default accepted
             * @constant
             */
            status: "accepted";
        };
        /**
         * Switched
         * @example {
         *       "active_agent_id": "sales",
         *       "changed": true,
         *       "seq": 10
         *     }
         */
        Switched: {
            /** Active Agent Id */
            active_agent_id: string;
            /** Changed */
            changed: boolean;
            /**
             * Seq
             * @description of the handoff; of the last event when nothing changed
             */
            seq: number;
        };
        /** ToolCall */
        ToolCall: {
            /** Agent Id */
            agent_id: string | null;
            /** Args */
            args: {
                [key: string]: unknown;
            };
            /** Duration Ms */
            duration_ms: number | null;
            /** Error */
            error: string | null;
            /** Name */
            name: string | null;
            /** Result */
            result: string | null;
            /** Status */
            status: string;
            /** Tool Call Id */
            tool_call_id: string | null;
        };
        /**
         * ToolDone
         * @example {
         *       "agent_id": "general",
         *       "duration_ms": 1,
         *       "events": [],
         *       "message_id": "msg-8c…",
         *       "result": "…",
         *       "session_id": "s-1",
         *       "status": "success",
         *       "tool": "weather"
         *     }
         */
        ToolDone: {
            /** Agent Id */
            agent_id: string;
            /** Duration Ms */
            duration_ms: number | null;
            /** Error */
            error: string | null;
            /** Events */
            events: components["schemas"]["Event"][];
            /** Message Id */
            message_id: string;
            /** Result */
            result: string;
            /** Session Id */
            session_id: string;
            /**
             * Status
             * @enum {string}
             */
            status: "success" | "error";
            /** Tool */
            tool: string;
        };
        /** ToolShown */
        ToolShown: {
            /**
             * Agents
             * @description whose lists name it
             */
            agents: string[];
            /** Description */
            description: string | null;
            /**
             * Kind
             * @enum {string}
             */
            kind: "custom" | "builtin" | "mcp";
            /** Name */
            name: string;
            /**
             * Params Schema
             * @description null where only a worker or a provider knows it
             */
            params_schema: {
                [key: string]: unknown;
            } | null;
        };
        /** ToolsShown */
        ToolsShown: {
            /** Tools */
            tools: components["schemas"]["ToolShown"][];
        };
        /** ToolsStatus */
        ToolsStatus: {
            /** Builtins */
            builtins: components["schemas"]["BuiltinStatus"][];
            /**
             * Model Kind
             * @description what the models are reached by, on which the status depends
             */
            model_kind: string;
        };
        /** Transcript */
        Transcript: {
            /** Has More */
            has_more: boolean;
            /** Messages */
            messages: components["schemas"]["TranscriptMessage"][];
            /** Next Since */
            next_since: number;
            /** Session Id */
            session_id: string;
        };
        /** TranscriptMessage */
        TranscriptMessage: {
            /** Agent Id */
            agent_id: string | null;
            /** Message Id */
            message_id: string | null;
            /** Reply To */
            reply_to: string | null;
            /** Role */
            role: string;
            /** Seq */
            seq: number;
            /** Text */
            text: string;
            /** Timestamp Ms */
            timestamp_ms: number;
        };
        /**
         * Usage
         * @description What the models of a session have used, in all and by agent.
         * @example {
         *       "by_agent": {
         *         "general": {
         *           "total_tokens": 42
         *         }
         *       },
         *       "runs": 2,
         *       "session_id": "s-1",
         *       "usage": {
         *         "total_tokens": 42
         *       }
         *     }
         */
        Usage: {
            /** By Agent */
            by_agent: {
                [key: string]: {
                    [key: string]: unknown;
                };
            };
            /** Runs */
            runs: number;
            /** Session Id */
            session_id: string;
            /** Usage */
            usage: {
                [key: string]: unknown;
            };
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
};
export type $defs = Record<string, never>;
export type operations = Record<string, never>;
