// Made by `make page-types` from the gateway's OpenAPI document; not to be edited.
export type paths = Record<string, never>;
export type webhooks = Record<string, never>;
export type components = {
    schemas: {
        /**
         * Accepted
         * @description The run goes on: follow the session after `seq`. `message_id` is the question's.
         * @example {
         *       "status": "in_progress",
         *       "session_id": "s-1",
         *       "message_id": "msg-8c…",
         *       "seq": 2
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
        /** AgentReceipt */
        AgentReceipt: {
            /** Agent Id */
            agent_id: string;
            /** Reason */
            reason?: string | null;
            /** Run Id */
            run_id: string;
            /**
             * Status
             * @enum {string}
             */
            status: "seen" | "answered" | "dead";
            /**
             * Turn
             * @description of the answer that has seen it; none when a run of its own answers it
             */
            turn: number | null;
        };
        /**
         * AgentShown
         * @example {
         *       "name": "general",
         *       "role": "Answers what nobody else is for.",
         *       "model": null,
         *       "voice": "alloy",
         *       "tools": [
         *         "weather"
         *       ],
         *       "mcp": [],
         *       "handoffs": [
         *         "sales",
         *         "support"
         *       ],
         *       "scenarios": [
         *         "default"
         *       ],
         *       "alive": true
         *     }
         */
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
        /**
         * AgentsShown
         * @example {
         *       "agents": [
         *         {
         *           "name": "general",
         *           "role": "Answers what nobody else is for.",
         *           "model": null,
         *           "voice": "alloy",
         *           "tools": [
         *             "weather"
         *           ],
         *           "mcp": [],
         *           "handoffs": [
         *             "sales",
         *             "support"
         *           ],
         *           "scenarios": [
         *             "default"
         *           ],
         *           "alive": true
         *         }
         *       ]
         *     }
         */
        AgentsShown: {
            /** Agents */
            agents: components["schemas"]["AgentShown"][];
        };
        /**
         * Answer
         * @description What came of a message. `message_id` is the answer's; the question's is `reply_to`.
         * @example {
         *       "final_output": "In Oslo it is …",
         *       "message_id": "run-5f…/1",
         *       "reply_to": "msg-8c…",
         *       "session_id": "s-1",
         *       "seq": 2,
         *       "events": [
         *         {
         *           "session_id": "s-1",
         *           "seq": 2,
         *           "type": "message",
         *           "message_id": "m-1",
         *           "token_seq": null,
         *           "role": "user",
         *           "agent_id": null,
         *           "text": "weather in Oslo",
         *           "final": true,
         *           "reason": null,
         *           "data": {
         *             "sender": "user:local"
         *           },
         *           "timestamp_ms": 1790000000000
         *         }
         *       ],
         *       "usage": {
         *         "total_tokens": 42
         *       },
         *       "tool_calls": [
         *         {
         *           "tool_call_id": "call-1",
         *           "name": "weather",
         *           "agent_id": "general",
         *           "args": {
         *             "city": "Oslo"
         *           },
         *           "status": "success",
         *           "result": "In Oslo it is …",
         *           "error": null,
         *           "duration_ms": 1
         *         }
         *       ]
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
         * ApprovalShown
         * @description A call that waits, or has waited, for a person. `args` are as the model wrote them.
         * @example {
         *       "call_id": "call-1",
         *       "tool": "refund",
         *       "args": {
         *         "order": "7"
         *       },
         *       "agent_id": "support",
         *       "run_id": "run-5f…",
         *       "turn": 0,
         *       "status": "pending",
         *       "expires_at": "2026-01-02T03:04:05Z",
         *       "decided_by": null,
         *       "reason": null
         *     }
         */
        ApprovalShown: {
            /** Agent Id */
            agent_id: string;
            /** Args */
            args: {
                [key: string]: unknown;
            };
            /** Call Id */
            call_id: string;
            /** Decided By */
            decided_by: string | null;
            /**
             * Expires At
             * Format: date-time
             */
            expires_at: string;
            /** Reason */
            reason: string | null;
            /** Run Id */
            run_id: string;
            /**
             * Status
             * @enum {string}
             */
            status: "pending" | "approved" | "rejected" | "expired";
            /** Tool */
            tool: string;
            /** Turn */
            turn: number;
        };
        /**
         * ApprovalsShown
         * @example {
         *       "session_id": "s-1",
         *       "approvals": [
         *         {
         *           "call_id": "call-1",
         *           "tool": "refund",
         *           "args": {
         *             "order": "7"
         *           },
         *           "agent_id": "support",
         *           "run_id": "run-5f…",
         *           "turn": 0,
         *           "status": "pending",
         *           "expires_at": "2026-01-02T03:04:05Z",
         *           "decided_by": null,
         *           "reason": null
         *         }
         *       ]
         *     }
         */
        ApprovalsShown: {
            /** Approvals */
            approvals: components["schemas"]["ApprovalShown"][];
            /** Session Id */
            session_id: string;
        };
        /**
         * BuiltinStatus
         * @description `enabled` is what the settings say; `available`, whether it would work; `missing`, which settings it wants.
         * @example {
         *       "name": "FileSearchTool",
         *       "enabled": false,
         *       "available": false,
         *       "missing": [
         *         "FILE_SEARCH_VECTOR_STORES"
         *       ],
         *       "reason": "not set up: FILE_SEARCH_VECTOR_STORES"
         *     }
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
         * ChannelMessages
         * @example {
         *       "messages": [
         *         {
         *           "from": "ann",
         *           "seq": 1,
         *           "text": "we are live",
         *           "told": [
         *             "bob"
         *           ]
         *         }
         *       ],
         *       "before": null
         *     }
         */
        ChannelMessages: {
            /**
             * Before
             * @description asks for what was said before; null when that was all
             */
            before: number | null;
            /** Messages */
            messages: {
                [key: string]: unknown;
            }[];
        };
        /**
         * ChannelShown
         * @example {
         *       "name": "launch",
         *       "leader": "ann",
         *       "members": [
         *         {
         *           "username": "ann",
         *           "user": "ann",
         *           "agent": "general"
         *         }
         *       ],
         *       "removed": false
         *     }
         */
        ChannelShown: {
            /** Leader */
            leader: string;
            /** Members */
            members: components["schemas"]["MemberShown"][];
            /** Name */
            name: string;
            /** Removed */
            removed: boolean;
        };
        /**
         * ChannelsShown
         * @example {
         *       "channels": [
         *         {
         *           "name": "launch",
         *           "leader": "ann",
         *           "members": [
         *             {
         *               "username": "ann",
         *               "user": "ann",
         *               "agent": "general"
         *             }
         *           ],
         *           "removed": false
         *         }
         *       ]
         *     }
         */
        ChannelsShown: {
            /** Channels */
            channels: components["schemas"]["ChannelShown"][];
        };
        /**
         * ConnectorShown
         * @example {
         *       "id": "hook",
         *       "kind": "webhook",
         *       "capabilities": {
         *         "files": true,
         *         "reply_to": true,
         *         "takes_key": false,
         *         "text": true
         *       }
         *     }
         */
        ConnectorShown: {
            /** Capabilities */
            capabilities: {
                [key: string]: boolean;
            };
            /** Id */
            id: string;
            /** Kind */
            kind: string;
        };
        /**
         * ConnectorsShown
         * @example {
         *       "connectors": [
         *         {
         *           "id": "web",
         *           "kind": "web",
         *           "capabilities": {
         *             "files": true,
         *             "reply_to": true,
         *             "takes_key": true,
         *             "text": true
         *           }
         *         }
         *       ]
         *     }
         */
        ConnectorsShown: {
            /** Connectors */
            connectors: components["schemas"]["ConnectorShown"][];
        };
        /** ContactShown */
        ContactShown: {
            /** Agent */
            agent: string;
            /** Blocked */
            blocked: boolean;
            /** User */
            user: string;
        };
        /**
         * ContactsShown
         * @example {
         *       "contacts": [
         *         {
         *           "user": "ann",
         *           "agent": "general",
         *           "blocked": false
         *         }
         *       ]
         *     }
         */
        ContactsShown: {
            /** Contacts */
            contacts: components["schemas"]["ContactShown"][];
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
        /**
         * Done
         * @example {
         *       "status": "ok"
         *     }
         */
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
         *       "session_id": "s-1",
         *       "seq": 2,
         *       "type": "message",
         *       "message_id": "m-1",
         *       "token_seq": null,
         *       "role": "user",
         *       "agent_id": null,
         *       "text": "weather in Oslo",
         *       "final": true,
         *       "reason": null,
         *       "data": {
         *         "sender": "user:local"
         *       },
         *       "timestamp_ms": 1790000000000
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
         *       "session_id": "s-1",
         *       "events": [
         *         {
         *           "session_id": "s-1",
         *           "seq": 2,
         *           "type": "message",
         *           "message_id": "m-1",
         *           "token_seq": null,
         *           "role": "user",
         *           "agent_id": null,
         *           "text": "weather in Oslo",
         *           "final": true,
         *           "reason": null,
         *           "data": {
         *             "sender": "user:local"
         *           },
         *           "timestamp_ms": 1790000000000
         *         }
         *       ],
         *       "next_since": 2,
         *       "has_more": true
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
        /**
         * FriendShown
         * @example {
         *       "nametag": "bob",
         *       "status": "pending",
         *       "asked_by_you": true,
         *       "may_ask_at_ms": 0
         *     }
         */
        FriendShown: {
            /** Asked By You */
            asked_by_you: boolean;
            /**
             * May Ask At Ms
             * @description when you may ask again; 0 for at once
             */
            may_ask_at_ms: number;
            /** Nametag */
            nametag: string;
            /**
             * Status
             * @enum {string}
             */
            status: "pending" | "friends" | "apart";
        };
        /**
         * FriendsShown
         * @example {
         *       "friends": [
         *         {
         *           "nametag": "bob",
         *           "status": "friends",
         *           "asked_by_you": true,
         *           "may_ask_at_ms": 0
         *         }
         *       ]
         *     }
         */
        FriendsShown: {
            /** Friends */
            friends: components["schemas"]["FriendShown"][];
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
        /**
         * ItemShown
         * @description `dead` and `unknown` wait for somebody to send them again or drop them.
         * @example {
         *       "id": "send-0a1b",
         *       "connector": "hook",
         *       "target": "ann",
         *       "conversation_id": "s-1",
         *       "state": "unknown",
         *       "tries": 1,
         *       "reason": "hook.example was lost before it had answered",
         *       "receipt": null,
         *       "at_ms": 1790000000000
         *     }
         */
        ItemShown: {
            /** At Ms */
            at_ms: number;
            /** Connector */
            connector: string;
            /** Conversation Id */
            conversation_id: string;
            /** Id */
            id: string;
            /** Reason */
            reason: string | null;
            /** Receipt */
            receipt: string | null;
            /**
             * State
             * @enum {string}
             */
            state: "waiting" | "begun" | "sent" | "dead" | "unknown" | "dropped";
            /** Target */
            target: string;
            /** Tries */
            tries: number;
        };
        /**
         * ItemsShown
         * @example {
         *       "items": []
         *     }
         */
        ItemsShown: {
            /** Items */
            items: components["schemas"]["ItemShown"][];
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
        /**
         * LastRun
         * @example {
         *       "status": "finished",
         *       "agent_id": "general",
         *       "message_id": "msg-8c…"
         *     }
         */
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
         * @example {
         *       "agent": "general",
         *       "seq": 1,
         *       "conversation_id": "s-1",
         *       "reason": "gave up after 3 attempts",
         *       "attempts": 3,
         *       "buried_at": "2026-09-21T14:13:20Z",
         *       "envelope_id": "msg-8c…",
         *       "text": "weather in Oslo"
         *     }
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
        /**
         * LetterList
         * @example {
         *       "letters": [],
         *       "next": null
         *     }
         */
        LetterList: {
            /** Letters */
            letters: components["schemas"]["Letter"][];
            /**
             * Next
             * @description give it back as `after` to go on
             */
            next: number | null;
        };
        /**
         * Me
         * @description Whoever asks. `principal` owns what they begin and signs what they send.
         * @example {
         *       "principal": "user:ann",
         *       "scopes": [
         *         "user:ann"
         *       ]
         *     }
         */
        Me: {
            /** Principal */
            principal: string;
            /**
             * Scopes
             * @description `admin`, or the one user whose things these are, or both
             */
            scopes: string[];
        };
        /** MemberShown */
        MemberShown: {
            /** Agent */
            agent: string;
            /** User */
            user: string;
            /** Username */
            username: string;
        };
        /**
         * ProblemDocument
         * @description What went wrong (RFC 9457). `code` is stable; `detail` is for people and names the next step.
         */
        ProblemDocument: {
            /** Code */
            code: string;
            /** Detail */
            detail: string;
            /** Status */
            status: number;
            /** Title */
            title: string;
            /** Type */
            type: string;
        } & {
            [key: string]: unknown;
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
         * ReceiptShown
         * @description What became of a message. `status` is that of the agent that is furthest; `waiting` have not seen it yet.
         * @example {
         *       "session_id": "s-1",
         *       "receipt_id": "msg-8c…",
         *       "status": "seen",
         *       "waiting": 0,
         *       "receipts": [
         *         {
         *           "agent_id": "general",
         *           "run_id": "run-5f…",
         *           "turn": 2,
         *           "status": "seen"
         *         }
         *       ]
         *     }
         */
        ReceiptShown: {
            /** Receipt Id */
            receipt_id: string;
            /** Receipts */
            receipts: components["schemas"]["AgentReceipt"][];
            /** Session Id */
            session_id: string;
            /**
             * Status
             * @enum {string}
             */
            status: "accepted" | "seen" | "answered" | "dead";
            /** Waiting */
            waiting: number;
        };
        /**
         * Routed
         * @description Who answers, and why. `by` is who decided; `fallback`, why the supervisor did not, when it was asked.
         * @example {
         *       "chosen_root": "support",
         *       "reason": "support: broken",
         *       "changed": true,
         *       "by": "keywords",
         *       "fallback": null,
         *       "scores": {
         *         "general": 0,
         *         "sales": 0,
         *         "support": 3
         *       },
         *       "evidence": {
         *         "support": [
         *           "broken"
         *         ]
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
        /**
         * ScenarioShown
         * @example {
         *       "id": "default",
         *       "title": "",
         *       "root": "general",
         *       "supervisor": "supervisor",
         *       "agents": [
         *         "supervisor",
         *         "general"
         *       ]
         *     }
         */
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
        /**
         * ScenariosShown
         * @example {
         *       "scenarios": [
         *         {
         *           "id": "default",
         *           "title": "",
         *           "root": "general",
         *           "supervisor": "supervisor",
         *           "agents": [
         *             "supervisor",
         *             "general"
         *           ]
         *         }
         *       ],
         *       "default": "default"
         *     }
         */
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
         *       "session_id": "s-1",
         *       "title": "Oslo",
         *       "last_text": "and in Bergen?",
         *       "active_agent_id": "general",
         *       "scenario_id": "default",
         *       "run_status": "finished",
         *       "approvals": 0,
         *       "last_seq": 9,
         *       "last_active_ms": 1790000000000,
         *       "owner": "user:local"
         *     }
         */
        SessionItem: {
            /** Active Agent Id */
            active_agent_id: string | null;
            /**
             * Approvals
             * @description how many calls of its last run wait for a person
             */
            approvals: number;
            /** Last Active Ms */
            last_active_ms: number;
            /** Last Seq */
            last_seq: number;
            /**
             * Last Text
             * @description the last message, cut short
             */
            last_text: string | null;
            /** Owner */
            owner: string | null;
            /** Run Status */
            run_status: string | null;
            /** Scenario Id */
            scenario_id: string | null;
            /** Session Id */
            session_id: string;
            /**
             * Title
             * @description as it was given; else the first message
             */
            title: string | null;
        };
        /**
         * SessionList
         * @example {
         *       "sessions": [
         *         {
         *           "session_id": "s-1",
         *           "title": "Oslo",
         *           "last_text": "and in Bergen?",
         *           "active_agent_id": "general",
         *           "scenario_id": "default",
         *           "run_status": "finished",
         *           "approvals": 0,
         *           "last_seq": 9,
         *           "last_active_ms": 1790000000000,
         *           "owner": "user:local"
         *         }
         *       ],
         *       "next": null
         *     }
         */
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
         *       "session_id": "s-1",
         *       "agent_name": "general",
         *       "model": null,
         *       "tools": [
         *         "WebSearchTool",
         *         "echo_context",
         *         "weather"
         *       ],
         *       "overlay": null
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
         *       "session_id": "s-1",
         *       "active_agent_id": "general",
         *       "scenario_id": "default",
         *       "title": "Oslo",
         *       "state": "idle",
         *       "last_seq": 9,
         *       "last_run": {
         *         "agent_id": "general",
         *         "message_id": "msg-8c…",
         *         "status": "finished"
         *       },
         *       "last_active_ms": 1790000000000,
         *       "owner": "user:local",
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
         *       "status": "accepted",
         *       "session_id": "s-1",
         *       "agent_id": "general",
         *       "mode": "now",
         *       "receipt_id": "0f4c…"
         *     }
         */
        SessionStopping: {
            /** Agent Id */
            agent_id: string;
            /** Mode */
            mode: string;
            /**
             * Receipt Id
             * @description the id by which the `message_received` event names this stop
             */
            receipt_id: string;
            /** Session Id */
            session_id: string;
            /**
             * Status
             * @default accepted
             * @constant
             */
            status: "accepted";
        };
        /**
         * Steered
         * @description Accepted. `seq` is that of the message in the session; `receipt_id` is how to ask what became of it.
         * @example {
         *       "status": "accepted",
         *       "session_id": "s-1",
         *       "receipt_id": "msg-8c…",
         *       "seq": 12
         *     }
         */
        Steered: {
            /**
             * Notice
             * @description why it may have to wait
             */
            notice?: string | null;
            /** Receipt Id */
            receipt_id: string;
            /** Seq */
            seq: number;
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
         * SwarmShown
         * @example {
         *       "nametag": "desk",
         *       "owner": "bob",
         *       "agent": "support",
         *       "open": true,
         *       "guests": [],
         *       "removed": false
         *     }
         */
        SwarmShown: {
            /** Agent */
            agent: string;
            /** Guests */
            guests: string[];
            /** Nametag */
            nametag: string;
            /** Open */
            open: boolean;
            /** Owner */
            owner: string;
            /** Removed */
            removed: boolean;
        };
        /**
         * SwarmsShown
         * @example {
         *       "swarms": [
         *         {
         *           "nametag": "desk",
         *           "owner": "bob",
         *           "agent": "support",
         *           "open": true,
         *           "guests": [],
         *           "removed": false
         *         }
         *       ]
         *     }
         */
        SwarmsShown: {
            /** Swarms */
            swarms: components["schemas"]["SwarmShown"][];
        };
        /**
         * Switched
         * @example {
         *       "changed": true,
         *       "active_agent_id": "sales",
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
        /**
         * ToolCall
         * @example {
         *       "tool_call_id": "call-1",
         *       "name": "weather",
         *       "agent_id": "general",
         *       "args": {
         *         "city": "Oslo"
         *       },
         *       "status": "success",
         *       "result": "In Oslo it is …",
         *       "error": null,
         *       "duration_ms": 1
         *     }
         */
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
         *       "session_id": "s-1",
         *       "tool": "weather",
         *       "agent_id": "general",
         *       "status": "success",
         *       "result": "…",
         *       "error": null,
         *       "message_id": "msg-8c…",
         *       "duration_ms": 1,
         *       "events": [
         *         {
         *           "session_id": "s-1",
         *           "seq": 2,
         *           "type": "message",
         *           "message_id": "m-1",
         *           "token_seq": null,
         *           "role": "user",
         *           "agent_id": null,
         *           "text": "weather in Oslo",
         *           "final": true,
         *           "reason": null,
         *           "data": {
         *             "sender": "user:local"
         *           },
         *           "timestamp_ms": 1790000000000
         *         }
         *       ]
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
        /**
         * ToolShown
         * @example {
         *       "name": "weather",
         *       "kind": "custom",
         *       "description": "The weather in a city.",
         *       "params_schema": {
         *         "properties": {
         *           "city": {
         *             "type": "string"
         *           }
         *         },
         *         "required": [
         *           "city"
         *         ],
         *         "type": "object"
         *       },
         *       "agents": [
         *         "general"
         *       ]
         *     }
         */
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
        /**
         * ToolsShown
         * @example {
         *       "tools": [
         *         {
         *           "name": "weather",
         *           "kind": "custom",
         *           "description": "The weather in a city.",
         *           "params_schema": {
         *             "properties": {
         *               "city": {
         *                 "type": "string"
         *               }
         *             },
         *             "required": [
         *               "city"
         *             ],
         *             "type": "object"
         *           },
         *           "agents": [
         *             "general"
         *           ]
         *         }
         *       ]
         *     }
         */
        ToolsShown: {
            /** Tools */
            tools: components["schemas"]["ToolShown"][];
        };
        /**
         * ToolsStatus
         * @example {
         *       "model_kind": "openai",
         *       "builtins": [
         *         {
         *           "name": "FileSearchTool",
         *           "enabled": false,
         *           "available": false,
         *           "missing": [
         *             "FILE_SEARCH_VECTOR_STORES"
         *           ],
         *           "reason": "not set up: FILE_SEARCH_VECTOR_STORES"
         *         }
         *       ]
         *     }
         */
        ToolsStatus: {
            /** Builtins */
            builtins: components["schemas"]["BuiltinStatus"][];
            /**
             * Model Kind
             * @description what the models are reached by, on which the status depends
             */
            model_kind: string;
        };
        /**
         * Transcript
         * @example {
         *       "session_id": "s-1",
         *       "messages": [
         *         {
         *           "seq": 9,
         *           "message_id": "run-5f…/1",
         *           "role": "assistant",
         *           "agent_id": "general",
         *           "text": "In Oslo it is …",
         *           "reply_to": "msg-8c…",
         *           "timestamp_ms": 1790000000000
         *         }
         *       ],
         *       "next_since": 9,
         *       "has_more": false
         *     }
         */
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
        /**
         * TranscriptMessage
         * @example {
         *       "seq": 9,
         *       "message_id": "run-5f…/1",
         *       "role": "assistant",
         *       "agent_id": "general",
         *       "text": "In Oslo it is …",
         *       "reply_to": "msg-8c…",
         *       "timestamp_ms": 1790000000000
         *     }
         */
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
         *       "session_id": "s-1",
         *       "usage": {
         *         "total_tokens": 42
         *       },
         *       "runs": 2,
         *       "by_agent": {
         *         "general": {
         *           "total_tokens": 42
         *         }
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
        /**
         * UserShown
         * @example {
         *       "id": "ann",
         *       "nametag": "ann",
         *       "agent": "general",
         *       "connector": "web",
         *       "target": "",
         *       "home": "home-0a1b2c3d4e5f6071",
         *       "removed": false
         *     }
         */
        UserShown: {
            /** Agent */
            agent: string | null;
            /** Connector */
            connector: string;
            /**
             * Home
             * @description the conversation that messages to them go to
             */
            home: string;
            /** Id */
            id: string;
            /** Nametag */
            nametag: string;
            /** Removed */
            removed: boolean;
            /** Target */
            target: string;
        };
        /**
         * UsersShown
         * @example {
         *       "users": [
         *         {
         *           "id": "ann",
         *           "nametag": "ann",
         *           "agent": "general",
         *           "connector": "web",
         *           "target": "",
         *           "home": "home-0a1b2c3d4e5f6071",
         *           "removed": false
         *         }
         *       ]
         *     }
         */
        UsersShown: {
            /** Users */
            users: components["schemas"]["UserShown"][];
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
