// Made by `make page-types` from the gateway's OpenAPI document; not to be edited.
export type paths = Record<string, never>;
export type webhooks = Record<string, never>;
export type components = {
    schemas: {
        /**
         * AcceptedResponse
         * @description The message was accepted and its run is not finished (202). Follow the session after `seq` to see the reply.
         * @example {
         *       "status": "in_progress",
         *       "session_id": "s-1",
         *       "message_id": "msg-8c…",
         *       "seq": 2
         *     }
         */
        AcceptedResponse: {
            /** Message Id */
            message_id: string;
            /**
             * Notice
             * @description a warning for the sender, for example that no worker serves the agent; else absent
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
         * AgentInfo
         * @description A registered agent, or one that a worker serves now.
         *
         *     `lanes` counts the conversations with messages for it; `pending` counts those messages.
         */
        AgentInfo: {
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
        /**
         * AgentList
         * @description All registered agents and all agents with a live worker.
         * @example {
         *       "agents": [
         *         {
         *           "name": "general",
         *           "alive": true,
         *           "workers": [
         *             "w-1"
         *           ],
         *           "lanes": {
         *             "ready": 1,
         *             "held": 0,
         *             "later": 0,
         *             "parked": 0
         *           },
         *           "pending": 1
         *         }
         *       ]
         *     }
         */
        AgentList: {
            /** Agents */
            agents: components["schemas"]["AgentInfo"][];
        };
        /**
         * AgentReceipt
         * @description The status of a message at one agent.
         */
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
             * @description the turn whose model request contained the message; null if a separate run answers it
             */
            turn: number | null;
        };
        /**
         * ApiEvent
         * @description An event of a session.
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
        ApiEvent: {
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
        /**
         * ApiEventPage
         * @description Events of a session, in order.
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
        ApiEventPage: {
            /** Events */
            events: components["schemas"]["ApiEvent"][];
            /** Has More */
            has_more: boolean;
            /** Next Since */
            next_since: number;
            /** Session Id */
            session_id: string;
        };
        /**
         * ApprovalInfo
         * @description A tool call that needs approval, and the decision. `args` are the arguments as the model wrote them.
         * @example {
         *       "session_id": "s-1",
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
        ApprovalInfo: {
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
            /** Session Id */
            session_id: string;
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
         * ApprovalList
         * @description The tool calls of a session that need or needed approval, oldest first.
         * @example {
         *       "session_id": "s-1",
         *       "approvals": [
         *         {
         *           "session_id": "s-1",
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
        ApprovalList: {
            /** Approvals */
            approvals: components["schemas"]["ApprovalInfo"][];
            /** Session Id */
            session_id: string;
        };
        /**
         * BudgetInfo
         * @description A budget: its limit, and how much is used. `name` is the run, conversation or user that it is for.
         *
         *     `set`: the limit was set at run time, in place of that of the configuration. `resets_at`: a new day begins.
         * @example {
         *       "budget": "user_day",
         *       "name": "user:ann",
         *       "limit": {
         *         "cost_usd": 5
         *       },
         *       "set": true,
         *       "used": {
         *         "calls": 12,
         *         "input_tokens": 9100,
         *         "output_tokens": 2300,
         *         "cached_tokens": 4000,
         *         "tokens": 11400,
         *         "cost_usd": 0.0418,
         *         "unpriced_calls": 0,
         *         "lost_calls": 0,
         *         "lost_tokens": 0,
         *         "lost_cost_usd": 0
         *       },
         *       "share": 0.01,
         *       "resets_at": "2026-11-18T00:00:00Z"
         *     }
         */
        BudgetInfo: {
            /**
             * Budget
             * @enum {string}
             */
            budget: "run" | "conversation" | "user" | "user_day" | "day";
            limit: components["schemas"]["LimitInfo"];
            /** Name */
            name: string;
            /** Resets At */
            resets_at?: string | null;
            /** Set */
            set: boolean;
            /**
             * Share
             * @description of the limit that is used, from 0 to a million; at 1 runs pause
             */
            share: number;
            used: components["schemas"]["UsageAmount"];
        };
        /**
         * BudgetList
         * @description Budgets, and the runs that wait for more.
         * @example {
         *       "budgets": [
         *         {
         *           "budget": "user_day",
         *           "name": "user:ann",
         *           "limit": {
         *             "cost_usd": 5
         *           },
         *           "set": true,
         *           "used": {
         *             "calls": 12,
         *             "input_tokens": 9100,
         *             "output_tokens": 2300,
         *             "cached_tokens": 4000,
         *             "tokens": 11400,
         *             "cost_usd": 0.0418,
         *             "unpriced_calls": 0,
         *             "lost_calls": 0,
         *             "lost_tokens": 0,
         *             "lost_cost_usd": 0
         *           },
         *           "share": 0.01,
         *           "resets_at": "2026-11-18T00:00:00Z"
         *         }
         *       ],
         *       "waiting": [
         *         {
         *           "run_id": "run-5f1c",
         *           "agent": "general",
         *           "session_id": "c-1a2b",
         *           "budgets": [
         *             {
         *               "budget": "user_day",
         *               "name": "user:ann",
         *               "limit": {
         *                 "cost_usd": 5
         *               },
         *               "set": true,
         *               "used": {
         *                 "calls": 12,
         *                 "input_tokens": 9100,
         *                 "output_tokens": 2300,
         *                 "cached_tokens": 4000,
         *                 "tokens": 11400,
         *                 "cost_usd": 0.0418,
         *                 "unpriced_calls": 0,
         *                 "lost_calls": 0,
         *                 "lost_tokens": 0,
         *                 "lost_cost_usd": 0
         *               },
         *               "share": 0.01,
         *               "resets_at": "2026-11-18T00:00:00Z"
         *             }
         *           ]
         *         }
         *       ]
         *     }
         */
        BudgetList: {
            /** Budgets */
            budgets: components["schemas"]["BudgetInfo"][];
            /** Waiting */
            waiting: components["schemas"]["WaitingRunInfo"][];
        };
        /**
         * BudgetRequest
         * @description Set a limit. A unit that is left out stays as it is, `null` removes its limit.
         *
         *     `reset` restores the limit of the configuration, and takes no unit. `name` is the run, conversation or user. `day`
         *     has none.
         * @example {
         *       "budget": "run",
         *       "name": "run-5f1c",
         *       "tokens": 200000
         *     }
         */
        BudgetRequest: {
            /**
             * Budget
             * @enum {string}
             */
            budget: "run" | "conversation" | "user" | "user_day" | "day";
            /** Calls */
            calls?: number | null;
            /** Cost Usd */
            cost_usd?: number | null;
            /**
             * Name
             * @default
             */
            name: string;
            /**
             * Reset
             * @default false
             */
            reset: boolean;
            /** Tokens */
            tokens?: number | null;
        };
        /**
         * BuiltinToolStatus
         * @description Whether a builtin tool can be used.
         *
         *     `enabled` is the setting; `available` says whether the tool would work; `missing` lists settings that it needs.
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
        BuiltinToolStatus: {
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
         * ChannelInfo
         * @description A channel and its members.
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
        ChannelInfo: {
            /** Leader */
            leader: string;
            /** Members */
            members: components["schemas"]["ChannelMemberInfo"][];
            /** Name */
            name: string;
            /** Removed */
            removed: boolean;
        };
        /**
         * ChannelList
         * @description All channels.
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
        ChannelList: {
            /** Channels */
            channels: components["schemas"]["ChannelInfo"][];
        };
        /**
         * ChannelMemberInfo
         * @description A member of a channel.
         */
        ChannelMemberInfo: {
            /** Agent */
            agent: string;
            /** User */
            user: string;
            /** Username */
            username: string;
        };
        /**
         * ChannelMessages
         * @description Messages of a channel.
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
             * @description pass it as `before` to get earlier messages; null if there are none
             */
            before: number | null;
            /** Messages */
            messages: {
                [key: string]: unknown;
            }[];
        };
        /**
         * ChannelRequest
         * @description Create a channel or change its members.
         * @example {
         *       "name": "launch",
         *       "action": "join",
         *       "username": "bob",
         *       "user": "bob",
         *       "agent": "general"
         *     }
         */
        ChannelRequest: {
            /**
             * Action
             * @enum {string}
             */
            action: "create" | "join" | "leave" | "lead" | "remove";
            /**
             * Agent
             * @description for `create` and `join`
             */
            agent?: string | null;
            /** Name */
            name: string;
            /**
             * User
             * @description the user whom the agent acts for; for `create` and `join`
             */
            user?: string | null;
            /**
             * Username
             * @description the member that the action is about; for `create`, the leader
             */
            username?: string | null;
        };
        /**
         * ChatRequest
         * @description The body of `POST /v1/chat/completions`.
         */
        ChatRequest: {
            /** Frequency Penalty */
            frequency_penalty?: number | null;
            /** Max Completion Tokens */
            max_completion_tokens?: number | null;
            /** Max Tokens */
            max_tokens?: number | null;
            /** Messages */
            messages: {
                [key: string]: unknown;
            }[];
            /** Metadata */
            metadata?: {
                [key: string]: string;
            } | null;
            /** Model */
            model: string;
            /** Parallel Tool Calls */
            parallel_tool_calls?: boolean | null;
            /** Presence Penalty */
            presence_penalty?: number | null;
            /** Prompt Cache Key */
            prompt_cache_key?: string | null;
            /** Reasoning Effort */
            reasoning_effort?: ("none" | "minimal" | "low" | "medium" | "high" | "xhigh") | null;
            response_format?: components["schemas"]["ResponseFormatParameter"] | null;
            /** Safety Identifier */
            safety_identifier?: string | null;
            /**
             * Store
             * @default false
             */
            store: boolean;
            /**
             * Stream
             * @default false
             */
            stream: boolean;
            stream_options?: components["schemas"]["StreamOptions"] | null;
            /** Temperature */
            temperature?: number | null;
            /** Tool Choice */
            tool_choice?: ("auto" | "none" | "required") | components["schemas"]["ChatToolName"] | null;
            /** Tools */
            tools?: components["schemas"]["ChatTool"][] | null;
            /** Top P */
            top_p?: number | null;
            /** User */
            user?: string | null;
            /** Verbosity */
            verbosity?: ("low" | "medium" | "high") | null;
        } & {
            [key: string]: unknown;
        };
        /**
         * ChatTool
         * @description A tool of the client.
         */
        ChatTool: {
            function?: components["schemas"]["FunctionDefinition"] | null;
            /** Type */
            type: string;
        } & {
            [key: string]: unknown;
        };
        /**
         * ChatToolName
         * @description The choice of one function.
         */
        ChatToolName: {
            /**
             * @default {
             *       "name": ""
             *     }
             */
            function: components["schemas"]["FunctionName"];
            /** Type */
            type: string;
        } & {
            [key: string]: unknown;
        };
        /**
         * CompactionInfo
         * @description What a compaction covers: all runs up to `through_run`, or of that run the turns up to `through_turn`.
         *
         *     `model` has made the summary. `tokens_…` are estimates of the size of the request.
         */
        CompactionInfo: {
            /** Model */
            model?: string | null;
            /**
             * Reason
             * @enum {string}
             */
            reason: "size" | "runs" | "refused";
            /**
             * Run Id
             * @description the run before whose model call it was made
             */
            run_id?: string | null;
            /** Through Run */
            through_run: string;
            /** Through Turn */
            through_turn?: number | null;
            /** Tokens After */
            tokens_after: number;
            /** Tokens Before */
            tokens_before: number;
        };
        /**
         * ConnectorInfo
         * @description A connector and what it can deliver.
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
        ConnectorInfo: {
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
         * ConnectorList
         * @description All connectors.
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
        ConnectorList: {
            /** Connectors */
            connectors: components["schemas"]["ConnectorInfo"][];
        };
        /**
         * ConnectorRequest
         * @description Create or replace a connector.
         * @example {
         *       "id": "hook",
         *       "kind": "webhook",
         *       "config": {
         *         "secret": "at-least-16-characters",
         *         "url": "https://example.com/in"
         *       }
         *     }
         */
        ConnectorRequest: {
            /**
             * Config
             * @description of a webhook: url, secret_env or secret, takes_key, …
             */
            config?: {
                [key: string]: string | boolean;
            };
            /** Id */
            id: string;
            /**
             * Kind
             * @enum {string}
             */
            kind: "console" | "webhook";
        };
        /**
         * Conversation
         * @description A session as it is stored, with its last run (`format=record`).
         * @example {
         *       "conversation_id": "s-1",
         *       "last_seq": 9,
         *       "active_agent": "general",
         *       "title": "Oslo",
         *       "run_status": "finished",
         *       "last_active_at": "2026-11-16T12:00:00Z",
         *       "usage": null,
         *       "last_run_usage": {
         *         "total_tokens": 42
         *       }
         *     }
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
            /**
             * Last Run Usage
             * @description tokens of the last run that finished
             */
            last_run_usage?: {
                [key: string]: unknown;
            } | null;
            /** Last Seq */
            last_seq: number;
            /** Run Status */
            run_status: string | null;
            /** Title */
            title: string | null;
            /**
             * Usage
             * @description tokens of all runs that finished; null in a list
             */
            usage: {
                [key: string]: unknown;
            } | null;
        };
        /**
         * ConversationPage
         * @description Sessions as they are stored, most recently active first (`format=record`).
         * @example {
         *       "conversations": [
         *         {
         *           "conversation_id": "s-1",
         *           "last_seq": 9,
         *           "active_agent": "general",
         *           "title": "Oslo",
         *           "run_status": "finished",
         *           "last_active_at": "2026-11-16T12:00:00Z",
         *           "usage": null,
         *           "last_run_usage": {
         *             "total_tokens": 42
         *           }
         *         }
         *       ],
         *       "next": null
         *     }
         */
        ConversationPage: {
            /** Conversations */
            conversations: components["schemas"]["Conversation"][];
            /**
             * Next
             * @description pass it as `before` to get the next page; null on the last page
             */
            next: string | null;
        };
        /**
         * ConversationReference
         * @description A session, as the Responses API names it.
         */
        ConversationReference: {
            /** Id */
            id: string;
        } & {
            [key: string]: unknown;
        };
        /**
         * DeadLetterInfo
         * @description A message that could not be processed.
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
        DeadLetterInfo: {
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
         * DeadLetterPage
         * @description Dead letters, oldest first.
         * @example {
         *       "letters": [],
         *       "next": null
         *     }
         */
        DeadLetterPage: {
            /** Letters */
            letters: components["schemas"]["DeadLetterInfo"][];
            /**
             * Next
             * @description pass it as `after` to get the next page; null on the last page
             */
            next: number | null;
        };
        /**
         * DeadLettersRequest
         * @description Retry or drop the dead letters that meet all of these conditions. `all` is needed only without a condition.
         * @example {
         *       "action": "retry",
         *       "agent": "general",
         *       "since": "2026-09-21T14:00:00Z",
         *       "reason": "503",
         *       "dry_run": true
         *     }
         */
        DeadLettersRequest: {
            /**
             * Action
             * @enum {string}
             */
            action: "retry" | "drop";
            /**
             * After
             * @description `next` of the batch before
             */
            after?: string | null;
            /**
             * Agent
             * @description letters of this agent
             */
            agent?: string | null;
            /**
             * All
             * @description letters of every agent, time and reason
             * @default false
             */
            all: boolean;
            /**
             * Dry Run
             * @description only say which letters are meant; change nothing
             * @default false
             */
            dry_run: boolean;
            /**
             * Reason
             * @description letters whose reason contains this text
             */
            reason?: string | null;
            /**
             * Since
             * @description letters that were buried at this time or later
             */
            since?: string | null;
        };
        /**
         * DeadLettersResponse
         * @description The dead letters that were retried or dropped by this request, which handles a limited number of them.
         * @example {
         *       "letters": [],
         *       "refused": [],
         *       "next": null
         *     }
         */
        DeadLettersResponse: {
            /** Letters */
            letters: components["schemas"]["DeadLetterInfo"][];
            /**
             * Next
             * @description send the request again with it as `after`; null when all are done
             */
            next: string | null;
            /** Refused */
            refused: components["schemas"]["RefusedDeadLetter"][];
        };
        /**
         * DecisionRequest
         * @description Approve or reject a tool call.
         * @example {
         *       "decision": "reject",
         *       "reason": "too dear"
         *     }
         */
        DecisionRequest: {
            /**
             * Decision
             * @enum {string}
             */
            decision: "approve" | "reject";
            /**
             * Reason
             * @description of a rejection; the model receives it
             */
            reason?: string | null;
        };
        /**
         * EditRequest
         * @description Replace the last message of a person by another text, and answer that.
         * @example {
         *       "client_message_id": "e-1",
         *       "message_id": "msg-8c…",
         *       "text": "weather in Bergen"
         *     }
         */
        EditRequest: {
            /**
             * Client Message Id
             * @description idempotency key: the answer is replaced once per key, and a repeat gets the same response
             */
            client_message_id?: string | null;
            /**
             * Message Id
             * @description of the message that is replaced; another one than the last is refused
             */
            message_id?: string | null;
            /** Text */
            text: string;
        };
        /**
         * FileContent
         * Format: binary
         */
        FileContent: string;
        /** FileForm */
        FileForm: {
            /** Format: binary */
            file: string;
        };
        /**
         * FileInfo
         * @description A file. Name it by its `file_id` in the `attachments` of a message.
         * @example {
         *       "file_id": "file-5f…",
         *       "name": "photo.png",
         *       "media_type": "image/png",
         *       "size": 12345,
         *       "owner": "user:ann",
         *       "created_at": "2026-01-02T03:04:05Z",
         *       "conversation_id": null
         *     }
         */
        FileInfo: {
            /**
             * Conversation Id
             * @description the session that the file belongs to and is deleted with, if any
             */
            conversation_id: string | null;
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /** File Id */
            file_id: string;
            /**
             * Media Type
             * @description found from the content
             */
            media_type: string;
            /** Name */
            name: string;
            /** Owner */
            owner: string;
            /**
             * Size
             * @description in bytes
             */
            size: number;
        };
        /**
         * FileList
         * @description Files, newest first.
         * @example {
         *       "files": [
         *         {
         *           "file_id": "file-5f…",
         *           "name": "photo.png",
         *           "media_type": "image/png",
         *           "size": 12345,
         *           "owner": "user:ann",
         *           "created_at": "2026-01-02T03:04:05Z",
         *           "conversation_id": null
         *         }
         *       ],
         *       "next": null,
         *       "file_max_bytes": 33554432
         *     }
         */
        FileList: {
            /**
             * File Max Bytes
             * @description the largest file that can be uploaded
             */
            file_max_bytes: number;
            /** Files */
            files: components["schemas"]["FileInfo"][];
            /**
             * Next
             * @description pass it as `before` to get the next page; null on the last page
             */
            next: string | null;
        };
        /**
         * FriendInfo
         * @description The friendship with another user.
         * @example {
         *       "nametag": "bob",
         *       "status": "pending",
         *       "asked_by_you": true,
         *       "may_ask_at_ms": 0
         *     }
         */
        FriendInfo: {
            /** Asked By You */
            asked_by_you: boolean;
            /**
             * May Ask At Ms
             * @description when you may send the next request; 0 means now
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
         * FriendList
         * @description All friendships of a user.
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
        FriendList: {
            /** Friends */
            friends: components["schemas"]["FriendInfo"][];
        };
        /**
         * FriendRequest
         * @description Change the friendship with another user.
         * @example {
         *       "nametag": "@bob",
         *       "action": "request"
         *     }
         */
        FriendRequest: {
            /**
             * Action
             * @enum {string}
             */
            action: "request" | "accept" | "refuse" | "remove";
            /** Nametag */
            nametag: string;
        };
        /**
         * FunctionDefinition
         * @description A function in `tools`.
         */
        FunctionDefinition: {
            /** Description */
            description?: string | null;
            /** Name */
            name: string;
            /** Parameters */
            parameters?: {
                [key: string]: unknown;
            } | null;
            /** Strict */
            strict?: boolean | null;
        } & {
            [key: string]: unknown;
        };
        /**
         * FunctionName
         * @description `tool_choice.function`.
         */
        FunctionName: {
            /**
             * Name
             * @default
             */
            name: string;
        } & {
            [key: string]: unknown;
        };
        /**
         * HealthResponse
         * @description The gateway process is running.
         */
        HealthResponse: {
            /**
             * Status
             * @default ok
             * @constant
             */
            status: "ok";
        };
        /**
         * JsonSchemaFormat
         * @description `response_format.json_schema`.
         */
        JsonSchemaFormat: {
            /** Description */
            description?: string | null;
            /** Name */
            name: string;
            /** Schema */
            schema?: {
                [key: string]: unknown;
            } | null;
            /** Strict */
            strict?: boolean | null;
        } & {
            [key: string]: unknown;
        };
        /**
         * LaneCounts
         * @description Number of an agent's lanes in each state.
         */
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
         * @description The last run of a session.
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
             * @description of the message that the run answers
             */
            message_id: string | null;
            /** Status */
            status: string;
        };
        /**
         * LimitInfo
         * @description The most that may be used; a unit that is absent has no limit.
         */
        LimitInfo: {
            /** Calls */
            calls?: number | null;
            /** Cost Usd */
            cost_usd?: number | null;
            /** Tokens */
            tokens?: number | null;
        };
        /**
         * MessageReceipt
         * @description The status of a message. `status` is that of the most advanced agent; `waiting` agents have not seen it yet.
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
        MessageReceipt: {
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
         * MessageRequest
         * @description Send a user message to a session.
         * @example {
         *       "session_id": "s-1",
         *       "user_input": "weather in Oslo",
         *       "client_message_id": "m-1"
         *     }
         */
        MessageRequest: {
            /**
             * Attachments
             * @description the ids of uploaded files, which the agent gets with the text
             */
            attachments?: string[];
            /**
             * Client Message Id
             * @description idempotency key: the message is accepted once per key, and a repeat gets the same response
             */
            client_message_id?: string | null;
            /** @description the JSON schema that the answer matches, in place of the agent's own */
            output_schema?: components["schemas"]["OutputSchema"] | null;
            /** Session Id */
            session_id: string;
            /**
             * User Input
             * @description may be empty if the message has attachments
             */
            user_input: string;
            /**
             * Wait
             * @description wait up to a minute for the reply; else respond with 202 at once
             * @default true
             */
            wait: boolean;
            /**
             * When Busy
             * @description if another message waits or is being answered: wait for its end (`queue`), join its run (`steer`), stop its run first (`interrupt`), or refuse this message with 409 `busy` (`reject`)
             * @default queue
             * @enum {string}
             */
            when_busy: "queue" | "steer" | "interrupt" | "reject";
        };
        /**
         * MessageResponse
         * @description The reply to a message. `message_id` is the reply's id; `reply_to` is the id of the message that it answers.
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
        MessageResponse: {
            /** Events */
            events: components["schemas"]["ApiEvent"][];
            /** Final Output */
            final_output: string;
            /** Message Id */
            message_id: string | null;
            /** Reply To */
            reply_to: string;
            /**
             * Seq
             * @description of the message that is answered
             */
            seq: number;
            /** Session Id */
            session_id: string;
            /** Tool Calls */
            tool_calls: components["schemas"]["ToolCall"][];
            /**
             * Usage
             * @description tokens of the run that answered
             */
            usage: {
                [key: string]: unknown;
            } | null;
        };
        /**
         * OkResponse
         * @description The request was carried out.
         * @example {
         *       "status": "ok"
         *     }
         */
        OkResponse: {
            /**
             * Status
             * @default ok
             * @constant
             */
            status: "ok";
        };
        /**
         * OutboxItemInfo
         * @description An outgoing message. One that is `dead` or `unknown` waits until an operator retries or drops it.
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
        OutboxItemInfo: {
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
         * OutboxItemList
         * @description Outgoing messages.
         * @example {
         *       "items": []
         *     }
         */
        OutboxItemList: {
            /** Items */
            items: components["schemas"]["OutboxItemInfo"][];
        };
        /**
         * OutputSchema
         * @description The JSON schema that the answer has to match.
         */
        OutputSchema: {
            /** Description */
            description?: string | null;
            /**
             * Name
             * @default output
             */
            name: string;
            /** Schema */
            schema: {
                [key: string]: unknown;
            };
            /**
             * Strict
             * @default true
             */
            strict: boolean;
        };
        /**
         * PendingApprovalPage
         * @description The tool calls of the caller's sessions that wait for approval, most recently active session first.
         * @example {
         *       "approvals": [
         *         {
         *           "session_id": "s-1",
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
         *       ],
         *       "next": null
         *     }
         */
        PendingApprovalPage: {
            /** Approvals */
            approvals: components["schemas"]["ApprovalInfo"][];
            /**
             * Next
             * @description pass it as `before` to get the next page; null on the last page
             */
            next: string | null;
        };
        /**
         * PrincipalInfo
         * @description The caller. `principal` owns the conversations that they start and signs the messages that they send.
         * @example {
         *       "principal": "user:ann",
         *       "scopes": [
         *         "user:ann"
         *       ]
         *     }
         */
        PrincipalInfo: {
            /** Principal */
            principal: string;
            /**
             * Scopes
             * @description `admin`, the user that the credential is limited to, or both
             */
            scopes: string[];
        };
        /**
         * ProblemDocument
         * @description An error response (RFC 9457). `code` is stable; `detail` is for people and names the next step.
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
        /**
         * ReadyResponse
         * @description The gateway can reach its bus, which takes writes, and accepts requests.
         */
        ReadyResponse: {
            /**
             * Engine
             * @description of the bus; only with the gateway's token
             */
            engine?: string | null;
            /**
             * Status
             * @default ready
             * @constant
             */
            status: "ready";
        };
        /** ReasoningParameters */
        ReasoningParameters: {
            /** Effort */
            effort?: ("none" | "minimal" | "low" | "medium" | "high" | "xhigh") | null;
        } & {
            [key: string]: unknown;
        };
        /**
         * RecordPage
         * @description Events of a session as they were recorded, in order (`format=record`).
         * @example {
         *       "conversation_id": "s-1",
         *       "events": [
         *         {
         *           "conversation_id": "s-1",
         *           "event": "token",
         *           "index": 2,
         *           "seq": 8,
         *           "text": "it is "
         *         }
         *       ],
         *       "next_since": 8,
         *       "has_more": false
         *     }
         */
        RecordPage: {
            /** Conversation Id */
            conversation_id: string;
            /**
             * Events
             * @description each event as it was recorded, with its `seq`
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
         * RefusedDeadLetter
         * @description A dead letter that could not be retried. It stays in the list.
         */
        RefusedDeadLetter: {
            /** Agent */
            agent: string;
            /** Error */
            error: string;
            /** Seq */
            seq: number;
        };
        /**
         * RegenerateRequest
         * @description Answer the last message again.
         * @example {
         *       "client_message_id": "r-1"
         *     }
         */
        RegenerateRequest: {
            /**
             * Client Message Id
             * @description idempotency key: the answer is replaced once per key, and a repeat gets the same response
             */
            client_message_id?: string | null;
        };
        /**
         * ResponseFormatParameter
         * @description `response_format`.
         */
        ResponseFormatParameter: {
            json_schema?: components["schemas"]["JsonSchemaFormat"] | null;
            /**
             * Type
             * @enum {string}
             */
            type: "text" | "json_object" | "json_schema";
        } & {
            [key: string]: unknown;
        };
        /**
         * ResponseRequest
         * @description The body of `POST /v1/responses`.
         */
        ResponseRequest: {
            /**
             * Background
             * @default false
             */
            background: boolean;
            /** Conversation */
            conversation?: string | components["schemas"]["ConversationReference"] | null;
            /** Frequency Penalty */
            frequency_penalty?: number | null;
            /**
             * Include
             * @default []
             */
            include: string[];
            /** Input */
            input?: string | {
                [key: string]: unknown;
            }[] | null;
            /** Instructions */
            instructions?: string | null;
            /** Max Output Tokens */
            max_output_tokens?: number | null;
            /** Metadata */
            metadata?: {
                [key: string]: string;
            } | null;
            /** Model */
            model?: string | null;
            /** Parallel Tool Calls */
            parallel_tool_calls?: boolean | null;
            /** Presence Penalty */
            presence_penalty?: number | null;
            /** Previous Response Id */
            previous_response_id?: string | null;
            /** Prompt Cache Key */
            prompt_cache_key?: string | null;
            reasoning?: components["schemas"]["ReasoningParameters"] | null;
            /** Safety Identifier */
            safety_identifier?: string | null;
            /**
             * Store
             * @default true
             */
            store: boolean;
            /**
             * Stream
             * @default false
             */
            stream: boolean;
            stream_options?: components["schemas"]["ResponseStreamOptions"] | null;
            /** Temperature */
            temperature?: number | null;
            text?: components["schemas"]["TextParameters"] | null;
            /** Tool Choice */
            tool_choice?: ("auto" | "none" | "required") | components["schemas"]["ToolName"] | null;
            /** Tools */
            tools?: components["schemas"]["ResponseTool"][] | null;
            /** Top P */
            top_p?: number | null;
            /** User */
            user?: string | null;
            /**
             * When Busy
             * @default queue
             * @enum {string}
             */
            when_busy: "queue" | "steer" | "interrupt" | "reject";
        } & {
            [key: string]: unknown;
        };
        /** ResponseStreamOptions */
        ResponseStreamOptions: {
            [key: string]: unknown;
        };
        /**
         * ResponseTool
         * @description A tool of the client.
         */
        ResponseTool: {
            /** Description */
            description?: string | null;
            /**
             * Name
             * @default
             */
            name: string;
            /** Parameters */
            parameters?: {
                [key: string]: unknown;
            } | null;
            /** Strict */
            strict?: boolean | null;
            /** Type */
            type: string;
        } & {
            [key: string]: unknown;
        };
        /**
         * RetryRequest
         * @description Answer a message again.
         * @example {
         *       "message_id": "msg-8c…"
         *     }
         */
        RetryRequest: {
            /**
             * Message Id
             * @description of the message or of its reply
             */
            message_id: string;
        };
        /**
         * RouteRequest
         * @description Choose the agent that answers a message.
         * @example {
         *       "scenario_id": "default",
         *       "session_id": "s-1",
         *       "last_user_text": "the printer is broken"
         *     }
         */
        RouteRequest: {
            /**
             * Last User Text
             * @description the session's last message if omitted
             */
            last_user_text?: string | null;
            /**
             * Scenario Id
             * @description the session's scenario if omitted
             */
            scenario_id?: string | null;
            /** Session Id */
            session_id?: string | null;
        };
        /**
         * RouteResponse
         * @description The chosen agent and the reason.
         *
         *     `by` names what decided. `fallback` says why the supervisor's decision was not used, if it was asked.
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
        RouteResponse: {
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
         * RunScheduleRequest
         * @description Send the message of a schedule now.
         * @example {
         *       "client_message_id": "k-1"
         *     }
         */
        RunScheduleRequest: {
            /**
             * Client Message Id
             * @description makes it idempotent: a repeat sends nothing
             */
            client_message_id?: string | null;
        };
        /**
         * ScenarioInfo
         * @description A scenario: its root agent, its supervisor and its agents.
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
        ScenarioInfo: {
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
         * ScenarioList
         * @description All scenarios of the team.
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
        ScenarioList: {
            /** Default */
            default: string;
            /** Scenarios */
            scenarios: components["schemas"]["ScenarioInfo"][];
        };
        /**
         * ScheduleDetail
         * @description A schedule with its text and its last slots, newest first.
         * @example {
         *       "schedule_id": "news",
         *       "kind": "message",
         *       "owner": "user:ann",
         *       "session_id": "s-1",
         *       "agent": null,
         *       "title": "What is new today?",
         *       "at": null,
         *       "in_s": null,
         *       "cron": "0 9 * * 1-5",
         *       "timezone": "Europe/Berlin",
         *       "missed": "once",
         *       "when_busy": "queue",
         *       "until": null,
         *       "max_runs": null,
         *       "status": "active",
         *       "next_at": "2026-11-18T08:00:00Z",
         *       "runs": 3,
         *       "failures": 0,
         *       "skipped": 0,
         *       "last_at": "2026-11-17T08:00:00Z",
         *       "last_message_id": "slot-5f…",
         *       "last_error": null,
         *       "end_reason": null,
         *       "text": "What is new today?",
         *       "created_at": "2026-11-12T10:00:00Z",
         *       "recent": [
         *         {
         *           "outcome": "fired",
         *           "at": "2026-11-17T08:00:01Z",
         *           "slot": "2026-11-17T08:00:00Z",
         *           "message_id": "slot-5f…"
         *         }
         *       ]
         *     }
         */
        ScheduleDetail: {
            /** Agent */
            agent: string | null;
            /** At */
            at: string | null;
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /** Cron */
            cron: string | null;
            /** End Reason */
            end_reason: string | null;
            /**
             * Failures
             * @description of them, those that were refused
             */
            failures: number;
            /** In S */
            in_s: number | null;
            /**
             * Kind
             * @description `reminder`: an agent set it in its own conversation
             * @enum {string}
             */
            kind: "message" | "reminder";
            /**
             * Last At
             * @description the last slot that was sent or refused
             */
            last_at: string | null;
            /**
             * Last Error
             * @description why the last message was refused; null after one that was sent
             */
            last_error: string | null;
            /** Last Message Id */
            last_message_id: string | null;
            /** Max Runs */
            max_runs: number | null;
            /**
             * Missed
             * @enum {string}
             */
            missed: "skip" | "once" | "all";
            /**
             * Next At
             * @description the next slot; null if it is paused or has ended
             */
            next_at: string | null;
            /** Owner */
            owner: string;
            /** Recent */
            recent: components["schemas"]["SlotInfo"][];
            /**
             * Runs
             * @description slots whose message was sent or refused
             */
            runs: number;
            /** Schedule Id */
            schedule_id: string;
            /** Session Id */
            session_id: string;
            /**
             * Skipped
             * @description slots that were missed and not sent
             */
            skipped: number;
            /**
             * Status
             * @enum {string}
             */
            status: "active" | "paused" | "ended";
            /**
             * Text
             * @description null if it was erased with its session
             */
            text: string | null;
            /** Timezone */
            timezone: string;
            /**
             * Title
             * @description the text, shortened
             */
            title: string;
            /** Until */
            until: string | null;
            /**
             * When Busy
             * @enum {string}
             */
            when_busy: "queue" | "steer" | "interrupt" | "reject";
        };
        /**
         * ScheduleInfo
         * @description A schedule.
         * @example {
         *       "schedule_id": "news",
         *       "kind": "message",
         *       "owner": "user:ann",
         *       "session_id": "s-1",
         *       "agent": null,
         *       "title": "What is new today?",
         *       "at": null,
         *       "in_s": null,
         *       "cron": "0 9 * * 1-5",
         *       "timezone": "Europe/Berlin",
         *       "missed": "once",
         *       "when_busy": "queue",
         *       "until": null,
         *       "max_runs": null,
         *       "status": "active",
         *       "next_at": "2026-11-18T08:00:00Z",
         *       "runs": 3,
         *       "failures": 0,
         *       "skipped": 0,
         *       "last_at": "2026-11-17T08:00:00Z",
         *       "last_message_id": "slot-5f…",
         *       "last_error": null,
         *       "end_reason": null
         *     }
         */
        ScheduleInfo: {
            /** Agent */
            agent: string | null;
            /** At */
            at: string | null;
            /** Cron */
            cron: string | null;
            /** End Reason */
            end_reason: string | null;
            /**
             * Failures
             * @description of them, those that were refused
             */
            failures: number;
            /** In S */
            in_s: number | null;
            /**
             * Kind
             * @description `reminder`: an agent set it in its own conversation
             * @enum {string}
             */
            kind: "message" | "reminder";
            /**
             * Last At
             * @description the last slot that was sent or refused
             */
            last_at: string | null;
            /**
             * Last Error
             * @description why the last message was refused; null after one that was sent
             */
            last_error: string | null;
            /** Last Message Id */
            last_message_id: string | null;
            /** Max Runs */
            max_runs: number | null;
            /**
             * Missed
             * @enum {string}
             */
            missed: "skip" | "once" | "all";
            /**
             * Next At
             * @description the next slot; null if it is paused or has ended
             */
            next_at: string | null;
            /** Owner */
            owner: string;
            /**
             * Runs
             * @description slots whose message was sent or refused
             */
            runs: number;
            /** Schedule Id */
            schedule_id: string;
            /** Session Id */
            session_id: string;
            /**
             * Skipped
             * @description slots that were missed and not sent
             */
            skipped: number;
            /**
             * Status
             * @enum {string}
             */
            status: "active" | "paused" | "ended";
            /** Timezone */
            timezone: string;
            /**
             * Title
             * @description the text, shortened
             */
            title: string;
            /** Until */
            until: string | null;
            /**
             * When Busy
             * @enum {string}
             */
            when_busy: "queue" | "steer" | "interrupt" | "reject";
        };
        /**
         * ScheduleList
         * @description Schedules, most recently changed first.
         * @example {
         *       "schedules": [
         *         {
         *           "schedule_id": "news",
         *           "kind": "message",
         *           "owner": "user:ann",
         *           "session_id": "s-1",
         *           "agent": null,
         *           "title": "What is new today?",
         *           "at": null,
         *           "in_s": null,
         *           "cron": "0 9 * * 1-5",
         *           "timezone": "Europe/Berlin",
         *           "missed": "once",
         *           "when_busy": "queue",
         *           "until": null,
         *           "max_runs": null,
         *           "status": "active",
         *           "next_at": "2026-11-18T08:00:00Z",
         *           "runs": 3,
         *           "failures": 0,
         *           "skipped": 0,
         *           "last_at": "2026-11-17T08:00:00Z",
         *           "last_message_id": "slot-5f…",
         *           "last_error": null,
         *           "end_reason": null
         *         }
         *       ],
         *       "next": null
         *     }
         */
        ScheduleList: {
            /**
             * Next
             * @description pass it as `before` to get the next page; null on the last page
             */
            next: string | null;
            /** Schedules */
            schedules: components["schemas"]["ScheduleInfo"][];
        };
        /**
         * ScheduleRequest
         * @description A message that is sent later, or again and again. Exactly one of `at`, `in` and `cron` says when.
         *
         *     With the same `schedule_id`, a repeat creates nothing: the response has the schedule that exists.
         * @example {
         *       "text": "What is new today?",
         *       "session_id": "s-1",
         *       "cron": "0 9 * * 1-5",
         *       "timezone": "Europe/Berlin"
         *     }
         */
        ScheduleRequest: {
            /**
             * Agent
             * @description the agent that answers; default: the active agent
             */
            agent?: string | null;
            /**
             * At
             * @description an instant, as `2026-03-29T09:00:00+02:00`; without an offset it is a local time of `timezone`
             */
            at?: string | null;
            /**
             * Cron
             * @description minute, hour, day of month, month, day of week
             */
            cron?: string | null;
            /**
             * In
             * @description a duration from now: seconds, or as `90s`, `15m`, `1h30m`, `2d`
             */
            in?: number | string | null;
            /**
             * Max Runs
             * @description the schedule ends after so many slots
             */
            max_runs?: number | null;
            /**
             * Missed
             * @description what to do with slots for which no worker was there in time
             * @default once
             * @enum {string}
             */
            missed: "skip" | "once" | "all";
            /**
             * Schedule Id
             * @description generated if omitted
             */
            schedule_id?: string | null;
            /**
             * Session Id
             * @description the session that gets it; without one, `agent` is needed and the schedule gets its own session
             */
            session_id?: string | null;
            /**
             * Text
             * @description the message
             */
            text: string;
            /**
             * Timezone
             * @description IANA name, as `Europe/Berlin`; default: UTC
             */
            timezone?: string | null;
            /**
             * Until
             * @description no slot after this instant; of the same form as `at`
             */
            until?: string | null;
            /**
             * When Busy
             * @default queue
             * @enum {string}
             */
            when_busy: "queue" | "steer" | "interrupt" | "reject";
        };
        /**
         * SendRequest
         * @description An addressed message.
         */
        SendRequest: {
            /** Content */
            content?: string | null;
            /** Conversation Id */
            conversation_id: string;
            /**
             * Created At
             * Format: date-time
             */
            created_at?: string;
            /** Id */
            id?: string;
            /** Metadata */
            metadata?: {
                [key: string]: unknown;
            };
            /** Recipient */
            recipient: string;
            /** Sender */
            sender?: string;
            /**
             * Type
             * @default message
             * @enum {string}
             */
            type: "message" | "control";
        };
        /**
         * SendResponse
         * @description The message was accepted. Follow the conversation's stream after `seq` to see the reply.
         */
        SendResponse: {
            /** Envelope Id */
            envelope_id: string;
            /**
             * Notice
             * @description a warning for the sender, for example that no worker serves the agent; else absent
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
         * SessionCounts
         * @description How many sessions wait for an approval, are running, or have failed, by their last run.
         * @example {
         *       "waiting": 1,
         *       "running": 2,
         *       "failed": 0,
         *       "complete": true
         *     }
         */
        SessionCounts: {
            /**
             * Complete
             * @description false if only the most recently active 5000 sessions were counted
             */
            complete: boolean;
            /** Failed */
            failed: number;
            /** Running */
            running: number;
            /** Waiting */
            waiting: number;
        };
        /**
         * SessionInfo
         * @description The current state of a session.
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
        SessionInfo: {
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
            /**
             * Usage
             * @description tokens of all runs that finished
             */
            usage?: {
                [key: string]: unknown;
            } | null;
        };
        /**
         * SessionList
         * @description Sessions, most recently active first.
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
         *           "client_calls": 0,
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
             * @description pass it as `before` to get the next page; null on the last page
             */
            next: string | null;
            /** Sessions */
            sessions: components["schemas"]["SessionSummary"][];
        };
        /**
         * SessionRequest
         * @description Create a session with these settings, or change them.
         *
         *     Omitted fields keep their value. An empty text clears one.
         * @example {
         *       "agent_name": "general",
         *       "instructions": "Answer in one sentence.",
         *       "scenario_id": "default"
         *     }
         */
        SessionRequest: {
            /**
             * Agent Name
             * @description the active agent; the scenario's root agent if omitted
             */
            agent_name?: string | null;
            /**
             * Instructions
             * @description replaces the agent's own instructions in this session
             */
            instructions?: string | null;
            /** Model */
            model?: string | null;
            /**
             * Overlay
             * @description appended to the instructions of every agent in this session
             */
            overlay?: string | null;
            /** Scenario Id */
            scenario_id?: string | null;
            /**
             * Session Id
             * @description generated if omitted
             */
            session_id?: string | null;
        };
        /**
         * SessionSettings
         * @description The settings of a session.
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
        SessionSettings: {
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
         * SessionStopResponse
         * @description The stop was sent to the agent.
         * @example {
         *       "status": "accepted",
         *       "session_id": "s-1",
         *       "agent_id": "general",
         *       "mode": "now",
         *       "receipt_id": "0f4c…"
         *     }
         */
        SessionStopResponse: {
            /** Agent Id */
            agent_id: string;
            /** Mode */
            mode: string;
            /**
             * Receipt Id
             * @description the id of this stop in the `message_received` event
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
         * SessionSummary
         * @description A session as an entry of a list.
         * @example {
         *       "session_id": "s-1",
         *       "title": "Oslo",
         *       "last_text": "and in Bergen?",
         *       "active_agent_id": "general",
         *       "scenario_id": "default",
         *       "run_status": "finished",
         *       "approvals": 0,
         *       "client_calls": 0,
         *       "last_seq": 9,
         *       "last_active_ms": 1790000000000,
         *       "owner": "user:local"
         *     }
         */
        SessionSummary: {
            /** Active Agent Id */
            active_agent_id: string | null;
            /**
             * Approvals
             * @description number of tool calls of the last run that wait for approval
             */
            approvals: number;
            /**
             * Budget
             * @description kind of the budget that the last run waits for
             */
            budget?: string | null;
            /**
             * Client Calls
             * @description number of calls of the last run that wait for an output of the client's tools
             * @default 0
             */
            client_calls: number;
            /** Last Active Ms */
            last_active_ms: number;
            /** Last Seq */
            last_seq: number;
            /**
             * Last Text
             * @description the last message, truncated
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
             * @description the title that was set; else the first message
             */
            title: string | null;
        };
        /**
         * SessionUsage
         * @description Token usage of a session, in total and by agent.
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
        SessionUsage: {
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
            /**
             * Usage
             * @description tokens of all runs that finished
             */
            usage: {
                [key: string]: unknown;
            };
        };
        /**
         * SlotInfo
         * @description What became of a slot: `fired`, `failed`, `skipped` (with others up to `count`), or `sent` by hand.
         * @example {
         *       "outcome": "fired",
         *       "at": "2026-11-17T08:00:01Z",
         *       "slot": "2026-11-17T08:00:00Z",
         *       "message_id": "slot-5f…"
         *     }
         */
        SlotInfo: {
            /**
             * At
             * Format: date-time
             */
            at: string;
            /** Count */
            count?: number | null;
            /** Error */
            error?: string | null;
            /** Message Id */
            message_id?: string | null;
            /** Outcome */
            outcome: string;
            /** Slot */
            slot?: string | null;
        };
        /**
         * SteerRequest
         * @description Send a message to runs that are in progress.
         * @example {
         *       "text": "in Celsius, please",
         *       "client_message_id": "s-1",
         *       "require_active": true
         *     }
         */
        SteerRequest: {
            /**
             * Client Message Id
             * @description idempotency key: the message is accepted once per key
             */
            client_message_id?: string | null;
            /**
             * Require Active
             * @description refuse the message if no run is in progress
             * @default false
             */
            require_active: boolean;
            /**
             * Target
             * @description an agent; if omitted, every agent with a run in progress
             */
            target?: string | null;
            /** Text */
            text: string;
        };
        /**
         * SteerResponse
         * @description The message was accepted. `receipt_id` identifies its receipt; `seq` is its position in the session.
         * @example {
         *       "status": "accepted",
         *       "session_id": "s-1",
         *       "receipt_id": "msg-8c…",
         *       "seq": 12
         *     }
         */
        SteerResponse: {
            /**
             * Notice
             * @description why the message may have to wait
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
        /**
         * StopRequest
         * @description Stop the run of a session, at once or after the current turn.
         * @example {
         *       "mode": "now"
         *     }
         */
        StopRequest: {
            /**
             * Agent
             * @description the agent to stop; the agent that runs if omitted
             */
            agent?: string | null;
            /**
             * Mode
             * @default now
             * @enum {string}
             */
            mode: "now" | "after_turn";
            /**
             * Sender
             * @description for administrators: send the command as this sender
             */
            sender?: string | null;
        };
        /**
         * StopResponse
         * @description The stop was sent to the agent (`format=record`).
         * @example {
         *       "status": "accepted",
         *       "agent": "general",
         *       "envelope_id": "0f4c…",
         *       "seq": 1
         *     }
         */
        StopResponse: {
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
         * StreamOptions
         * @description `stream_options`.
         */
        StreamOptions: {
            /**
             * Include Usage
             * @default false
             */
            include_usage: boolean;
        } & {
            [key: string]: unknown;
        };
        /**
         * SwarmContactInfo
         * @description A user who has contacted a swarm.
         */
        SwarmContactInfo: {
            /** Agent */
            agent: string;
            /** Blocked */
            blocked: boolean;
            /** User */
            user: string;
        };
        /**
         * SwarmContactList
         * @description All users who have contacted a swarm.
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
        SwarmContactList: {
            /** Contacts */
            contacts: components["schemas"]["SwarmContactInfo"][];
        };
        /**
         * SwarmInfo
         * @description A swarm. When it is not `open`, only its `guests` may contact it.
         * @example {
         *       "nametag": "desk",
         *       "owner": "bob",
         *       "agent": "support",
         *       "open": true,
         *       "guests": [],
         *       "removed": false
         *     }
         */
        SwarmInfo: {
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
         * SwarmList
         * @description All swarms.
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
        SwarmList: {
            /** Swarms */
            swarms: components["schemas"]["SwarmInfo"][];
        };
        /**
         * SwarmRequest
         * @description Create a swarm or change who may contact it.
         * @example {
         *       "nametag": "@desk",
         *       "action": "create",
         *       "agent": "support"
         *     }
         */
        SwarmRequest: {
            /**
             * Action
             * @enum {string}
             */
            action: "create" | "open" | "close" | "let_in" | "put_out" | "block" | "unblock" | "remove";
            /**
             * Agent
             * @description the answering agent; for `create`
             */
            agent?: string | null;
            /** Nametag */
            nametag: string;
            /**
             * User
             * @description the user to let in, put out, block or unblock
             */
            user?: string | null;
        };
        /**
         * SwitchRequest
         * @description Make an agent the active agent of a session.
         * @example {
         *       "session_id": "s-1",
         *       "agent_name": "sales"
         *     }
         */
        SwitchRequest: {
            /** Agent Name */
            agent_name: string;
            /** Session Id */
            session_id: string;
        };
        /**
         * SwitchResponse
         * @description The active agent of a session after a switch.
         * @example {
         *       "changed": true,
         *       "active_agent_id": "sales",
         *       "seq": 10
         *     }
         */
        SwitchResponse: {
            /** Active Agent Id */
            active_agent_id: string;
            /** Changed */
            changed: boolean;
            /**
             * Seq
             * @description of the handoff event; of the last event if nothing changed
             */
            seq: number;
        };
        /**
         * TeamAgent
         * @description An agent of the team.
         * @example {
         *       "name": "general",
         *       "role": "Answers general questions.",
         *       "model": null,
         *       "voice": "alloy",
         *       "tools": [
         *         "weather"
         *       ],
         *       "mcp": [
         *         "files"
         *       ],
         *       "mcp_tools": {},
         *       "handoffs": [
         *         "sales",
         *         "support"
         *       ],
         *       "subagents": [],
         *       "scenarios": [
         *         "default"
         *       ],
         *       "alive": true
         *     }
         */
        TeamAgent: {
            /**
             * Alive
             * @description whether a worker serves it now; null if unknown
             */
            alive: boolean | null;
            /** Handoffs */
            handoffs: string[];
            /**
             * Mcp
             * @description MCP servers of which the agent may use all tools
             */
            mcp: string[];
            /**
             * Mcp Tools
             * @description tools of MCP servers that the agent may use, by server; null: all that the server has
             */
            mcp_tools: {
                [key: string]: string[] | null;
            };
            /** Model */
            model: string | null;
            /** Name */
            name: string;
            /**
             * Output Schema
             * @description the JSON schema that its answers match
             */
            output_schema?: {
                [key: string]: unknown;
            } | null;
            /** Role */
            role: string;
            /** Scenarios */
            scenarios: string[];
            /**
             * Subagents
             * @description agents that it may start for a task
             */
            subagents: string[];
            /**
             * Tools
             * @description all tools that the agent may use
             */
            tools: string[];
            /** Voice */
            voice: string | null;
        };
        /**
         * TeamAgentList
         * @description All agents of the team.
         * @example {
         *       "agents": [
         *         {
         *           "name": "general",
         *           "role": "Answers general questions.",
         *           "model": null,
         *           "voice": "alloy",
         *           "tools": [
         *             "weather"
         *           ],
         *           "mcp": [
         *             "files"
         *           ],
         *           "mcp_tools": {},
         *           "handoffs": [
         *             "sales",
         *             "support"
         *           ],
         *           "subagents": [],
         *           "scenarios": [
         *             "default"
         *           ],
         *           "alive": true
         *         }
         *       ]
         *     }
         */
        TeamAgentList: {
            /** Agents */
            agents: components["schemas"]["TeamAgent"][];
        };
        /** TextFormat */
        TextFormat: {
            /** Description */
            description?: string | null;
            /**
             * Name
             * @default output
             */
            name: string;
            /** Schema */
            schema?: {
                [key: string]: unknown;
            } | null;
            /** Strict */
            strict?: boolean | null;
            /**
             * Type
             * @default text
             * @enum {string}
             */
            type: "text" | "json_object" | "json_schema";
        } & {
            [key: string]: unknown;
        };
        /** TextParameters */
        TextParameters: {
            format?: components["schemas"]["TextFormat"] | null;
            /** Verbosity */
            verbosity?: ("low" | "medium" | "high") | null;
        } & {
            [key: string]: unknown;
        };
        /**
         * TitleRequest
         * @description Set the title of a session.
         * @example {
         *       "title": "A trip to Oslo"
         *     }
         */
        TitleRequest: {
            /**
             * Title
             * @description an empty text removes the title
             */
            title: string;
        };
        /**
         * ToolCall
         * @description A tool call of a run and its result.
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
         * ToolInfo
         * @description A tool and the agents that may use it.
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
        ToolInfo: {
            /**
             * Agents
             * @description agents that list this tool
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
             * @description null if only the worker or the model provider knows it
             */
            params_schema: {
                [key: string]: unknown;
            } | null;
        };
        /**
         * ToolList
         * @description All tools of the team.
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
        ToolList: {
            /** Tools */
            tools: components["schemas"]["ToolInfo"][];
        };
        /**
         * ToolName
         * @description The choice of one function.
         */
        ToolName: {
            /**
             * Name
             * @default
             */
            name: string;
            /** Type */
            type: string;
        } & {
            [key: string]: unknown;
        };
        /**
         * ToolRunRequest
         * @description Run a tool manually, without a model.
         * @example {
         *       "session_id": "s-1",
         *       "tool": "weather",
         *       "args": {
         *         "city": "Oslo"
         *       },
         *       "client_message_id": "call-1"
         *     }
         */
        ToolRunRequest: {
            /** Args */
            args?: {
                [key: string]: unknown;
            };
            /**
             * Client Message Id
             * @description idempotency key: the tool runs once per key, and a repeat gets the same result
             */
            client_message_id?: string | null;
            /** Session Id */
            session_id: string;
            /** Tool */
            tool: string;
        };
        /**
         * ToolRunResponse
         * @description The result of a tool that was run manually.
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
        ToolRunResponse: {
            /** Agent Id */
            agent_id: string;
            /** Duration Ms */
            duration_ms: number | null;
            /** Error */
            error: string | null;
            /** Events */
            events: components["schemas"]["ApiEvent"][];
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
         * ToolsStatus
         * @description Status of all builtin tools.
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
            builtins: components["schemas"]["BuiltinToolStatus"][];
            /**
             * Model Kind
             * @description the kind of model provider, which the status depends on
             */
            model_kind: string;
        };
        /**
         * Transcript
         * @description The messages and compactions of a session, without tokens and tool steps.
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
         * @description A message of a transcript, or a compaction: its role is `system`, and its text the summary.
         *
         *     The text of a compaction is empty if its summary could not be made.
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
            compaction?: components["schemas"]["CompactionInfo"] | null;
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
         * UsageAmount
         * @description What model calls have used. `cached_tokens` are part of `input_tokens`.
         *
         *     `cost_usd` is absent if no price is known, and leaves out `unpriced_calls`. The `lost_` fields are the estimates of
         *     calls that were lost with their worker, or cut off: they are not part of the other fields, but count in budgets.
         */
        UsageAmount: {
            /**
             * Cached Tokens
             * @default 0
             */
            cached_tokens: number;
            /**
             * Calls
             * @default 0
             */
            calls: number;
            /** Cost Usd */
            cost_usd?: number | null;
            /**
             * Input Tokens
             * @default 0
             */
            input_tokens: number;
            /**
             * Lost Calls
             * @default 0
             */
            lost_calls: number;
            /**
             * Lost Cost Usd
             * @default 0
             */
            lost_cost_usd: number;
            /**
             * Lost Tokens
             * @default 0
             */
            lost_tokens: number;
            /**
             * Output Tokens
             * @default 0
             */
            output_tokens: number;
            /**
             * Tokens
             * @default 0
             */
            tokens: number;
            /**
             * Unpriced Calls
             * @default 0
             */
            unpriced_calls: number;
        };
        /**
         * UsageGroupInfo
         * @description The usage of one day, user, agent, model or conversation: the fields that the report is by.
         */
        UsageGroupInfo: {
            /** Agent */
            agent?: string | null;
            /**
             * Cached Tokens
             * @default 0
             */
            cached_tokens: number;
            /**
             * Calls
             * @default 0
             */
            calls: number;
            /** Conversation */
            conversation?: string | null;
            /** Cost Usd */
            cost_usd?: number | null;
            /** Day */
            day?: string | null;
            /**
             * Input Tokens
             * @default 0
             */
            input_tokens: number;
            /**
             * Lost Calls
             * @default 0
             */
            lost_calls: number;
            /**
             * Lost Cost Usd
             * @default 0
             */
            lost_cost_usd: number;
            /**
             * Lost Tokens
             * @default 0
             */
            lost_tokens: number;
            /** Model */
            model?: string | null;
            /**
             * Output Tokens
             * @default 0
             */
            output_tokens: number;
            /**
             * Tokens
             * @default 0
             */
            tokens: number;
            /**
             * Unpriced Calls
             * @default 0
             */
            unpriced_calls: number;
            /** User */
            user?: string | null;
        };
        /**
         * UsageReportInfo
         * @description The usage in a time, added up by the fields `by`. `reserved_tokens` are estimates of calls in progress.
         * @example {
         *       "since": "2026-11-01",
         *       "until": "2026-11-17",
         *       "timezone": "UTC",
         *       "by": [
         *         "day"
         *       ],
         *       "groups": [
         *         {
         *           "calls": 12,
         *           "input_tokens": 9100,
         *           "output_tokens": 2300,
         *           "cached_tokens": 4000,
         *           "tokens": 11400,
         *           "cost_usd": 0.0418,
         *           "unpriced_calls": 0,
         *           "lost_calls": 0,
         *           "lost_tokens": 0,
         *           "lost_cost_usd": 0,
         *           "day": "2026-11-17"
         *         }
         *       ],
         *       "total": {
         *         "calls": 12,
         *         "input_tokens": 9100,
         *         "output_tokens": 2300,
         *         "cached_tokens": 4000,
         *         "tokens": 11400,
         *         "cost_usd": 0.0418,
         *         "unpriced_calls": 0,
         *         "lost_calls": 0,
         *         "lost_tokens": 0,
         *         "lost_cost_usd": 0
         *       },
         *       "reserved_calls": 0,
         *       "reserved_tokens": 0,
         *       "left_out": 0
         *     }
         */
        UsageReportInfo: {
            /** By */
            by: string[];
            /** Groups */
            groups: components["schemas"]["UsageGroupInfo"][];
            /**
             * Left Out
             * @description groups that used least and are not listed
             * @default 0
             */
            left_out: number;
            /**
             * Reserved Calls
             * @default 0
             */
            reserved_calls: number;
            /**
             * Reserved Tokens
             * @default 0
             */
            reserved_tokens: number;
            /** Since */
            since: string;
            /** Timezone */
            timezone: string;
            total: components["schemas"]["UsageAmount"];
            /** Until */
            until: string;
        };
        /**
         * UserInfo
         * @description A user.
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
        UserInfo: {
            /** Agent */
            agent: string | null;
            /** Connector */
            connector: string;
            /**
             * Home
             * @description the conversation that receives messages to this user
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
         * UserList
         * @description All users.
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
        UserList: {
            /** Users */
            users: components["schemas"]["UserInfo"][];
        };
        /**
         * UserRequest
         * @description Create or change a user. Omitted fields keep their value.
         * @example {
         *       "id": "ann",
         *       "nametag": "ann",
         *       "agent": "general"
         *     }
         */
        UserRequest: {
            /**
             * Agent
             * @description their foreground agent, which answers for them
             */
            agent?: string | null;
            /**
             * Connector
             * @description the connector that reaches them; `web` by default
             */
            connector?: string | null;
            /** Id */
            id: string;
            /**
             * Nametag
             * @description required for a new user; it cannot change
             */
            nametag?: string | null;
            /**
             * Target
             * @description their id at the connector
             */
            target?: string | null;
        };
        /**
         * WaitingRunInfo
         * @description A run that is paused until one of these budgets is raised.
         */
        WaitingRunInfo: {
            /** Agent */
            agent: string;
            /** Budgets */
            budgets: components["schemas"]["BudgetInfo"][];
            /** Run Id */
            run_id: string;
            /** Session Id */
            session_id: string;
        };
        /**
         * WebhookChange
         * @description What to change of a webhook; a field that is absent stays as it is.
         * @example {
         *       "events": [
         *         "run.failed"
         *       ]
         *     }
         */
        WebhookChange: {
            /** Events */
            events?: ("run.finished" | "run.failed" | "run.stopped" | "approval.requested" | "budget.reached")[] | null;
            /**
             * Rotate Secret
             * @description the gateway makes a new secret, and this response shows it
             * @default false
             */
            rotate_secret: boolean;
            /**
             * Secret
             * @description a new secret; 16 to 256 characters
             */
            secret?: string | null;
            /**
             * Url
             * @description under the rules of the registration
             */
            url?: string | null;
        };
        /**
         * WebhookDelivery
         * @description A notification and what became of it. One that is `dead` or `unknown` can be sent again.
         * @example {
         *       "id": "evt-0a1b",
         *       "type": "run.finished",
         *       "conversation_id": "s-1",
         *       "state": "sent",
         *       "tries": 0,
         *       "reason": null,
         *       "created_at": "2026-09-21T14:00:00Z",
         *       "changed_at": "2026-09-21T14:00:01Z"
         *     }
         */
        WebhookDelivery: {
            /**
             * Changed At
             * Format: date-time
             */
            changed_at: string;
            /** Conversation Id */
            conversation_id: string | null;
            /** Created At */
            created_at: string;
            /**
             * Id
             * @description the key that the receiver gets with every attempt
             */
            id: string;
            /** Reason */
            reason: string | null;
            /**
             * State
             * @enum {string}
             */
            state: "waiting" | "begun" | "sent" | "dead" | "unknown" | "dropped";
            /**
             * Tries
             * @description attempts that failed
             */
            tries: number;
            /** Type */
            type: string;
        };
        /**
         * WebhookDeliveryList
         * @description The last deliveries of a webhook, oldest first.
         * @example {
         *       "deliveries": []
         *     }
         */
        WebhookDeliveryList: {
            /** Deliveries */
            deliveries: components["schemas"]["WebhookDelivery"][];
        };
        /**
         * WebhookInfo
         * @description A webhook. Its secret is only in the response that creates or rotates it, if the gateway made it.
         * @example {
         *       "id": "wh-0a1b",
         *       "url": "https://example.com/hooks",
         *       "events": [
         *         "run.finished",
         *         "approval.requested"
         *       ],
         *       "scope": "own",
         *       "owner": "user:ann",
         *       "created_at": "2026-09-21T14:00:00Z"
         *     }
         */
        WebhookInfo: {
            /**
             * Created At
             * Format: date-time
             */
            created_at: string;
            /** Events */
            events: string[];
            /** Id */
            id: string;
            /**
             * Owner
             * @description null for one of the deployment
             */
            owner: string | null;
            /**
             * Scope
             * @enum {string}
             */
            scope: "own" | "deployment";
            /**
             * Secret
             * @description shown once; keep it
             */
            secret?: string | null;
            /** Url */
            url: string;
        };
        /**
         * WebhookList
         * @description Webhooks, oldest first.
         * @example {
         *       "webhooks": [
         *         {
         *           "id": "wh-0a1b",
         *           "url": "https://example.com/hooks",
         *           "events": [
         *             "run.finished",
         *             "approval.requested"
         *           ],
         *           "scope": "own",
         *           "owner": "user:ann",
         *           "created_at": "2026-09-21T14:00:00Z"
         *         }
         *       ]
         *     }
         */
        WebhookList: {
            /** Webhooks */
            webhooks: components["schemas"]["WebhookInfo"][];
        };
        /**
         * WebhookRequest
         * @description A webhook to register. Without `secret` and `secret_env`, the gateway makes a secret.
         * @example {
         *       "url": "https://example.com/hooks",
         *       "events": [
         *         "run.finished",
         *         "approval.requested"
         *       ]
         *     }
         */
        WebhookRequest: {
            /**
             * Allow Private
             * @description for admins: any address, also without TLS
             * @default false
             */
            allow_private: boolean;
            /**
             * Events
             * @description that it is told of; all by default
             */
            events?: ("run.finished" | "run.failed" | "run.stopped" | "approval.requested" | "budget.reached")[] | null;
            /**
             * Scope
             * @description `own` conversations; or of the whole `deployment`, for admins and their default
             */
            scope?: ("own" | "deployment") | null;
            /**
             * Secret
             * @description signs the requests; 16 to 256 characters, kept on the log
             */
            secret?: string | null;
            /**
             * Secret Env
             * @description for admins: the variable of the workers with the secret
             */
            secret_env?: string | null;
            /**
             * Url
             * @description with https, at a public address
             */
            url: string;
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
