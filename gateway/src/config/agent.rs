//! The table of settings that an agent may have besides its URL.

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct AgentSetting {
    /// Name in `[agents.ID]` and after the URL of `--agent`.
    pub name: &'static str,
    /// Placeholder for the value.
    pub form: &'static str,
    /// Value if the setting is absent.
    pub default: &'static str,
    pub doc: &'static str,
}

/// The table of agent settings.
pub const AGENT_SETTINGS: [AgentSetting; 16] = [
    AgentSetting {
        name: "on_owner_loss",
        form: "retry|retry_if_silent|fail|resume",
        default: "retry_if_silent",
        doc: "What becomes of its turns when their node dies: asked again, asked again unless text of it was \
              shown, failed with `owner_lost`, or going on where they were (docs/agents.md). Builtin agents and \
              models default to `retry`.",
    },
    AgentSetting {
        name: "input_ack",
        form: "WAIT",
        default: "15s",
        doc: "From the request to the headers of the answer; then `ROUTE_TIMEOUT`. Of an agent that is a model: 6m.",
    },
    AgentSetting {
        name: "silence",
        form: "WAIT",
        default: "2m",
        doc: "Between two signs of life while it answers, comments and unknown events among them; then `agent_timeout`. \
              Open actions and handovers of the run stop this clock (docs/agents.md).",
    },
    AgentSetting { name: "run", form: "WAIT", default: "30m", doc: "The whole run; then `agent_timeout`." },
    AgentSetting {
        name: "cancel_ack",
        form: "WAIT",
        default: "2s",
        doc: "From a cancel to the end of the stream; then `CANCEL_TIMEOUT`, and the request is closed.",
    },
    AgentSetting {
        name: "handover",
        form: "WAIT",
        default: "10m",
        doc: "From its asking that another agent answer until that is rejected if nobody has decided.",
    },
    AgentSetting {
        name: "cancel",
        form: "BOOL",
        default: "false",
        doc: "Whether it takes `POST {url}/cancel`; without it closing the request cancels. Builtin agents do, and \
              those with `on_owner_loss = \"resume\"` must.",
    },
    AgentSetting {
        name: "steer",
        form: "BOOL",
        default: "false",
        doc: "Whether it takes `POST {url}/steer`: inputs that come while it answers are handed to it, and do not \
              wait. `builtin:counter` does.",
    },
    AgentSetting {
        name: "events",
        form: "TYPE[|TYPE…]",
        default: "none",
        doc: "Facts of the session that it is told of while it answers, besides those about its own actions: names of \
              types, with `*` for one segment and `>` for the rest, such as `process.*|system.>`. An HTTP agent is told \
              at `POST {url}/event`. A builtin one is not.",
    },
    AgentSetting {
        name: "history",
        form: "N|all|off",
        default: "off",
        doc: "How many of the earlier messages of the session are sent with an input as `messages`, the newest ones, at most 1000 \
              and 256 KiB: for an agent that keeps no state. An input whose client sends its own earlier messages keeps those. \
              Agents that are models have `context` instead; builtin ones have none.",
    },
    AgentSetting {
        name: "keep_alive",
        form: "WAIT|off",
        default: "4s",
        doc: "Of an HTTP agent: how long an idle connection to it is kept for the next request. Less than its server keeps \
              it; uvicorn and Node.js close after 5 s. Where its answers say `Keep-Alive: timeout=N` with an N that is not \
              longer than this, no connection is kept.",
    },
    AgentSetting {
        name: "resend_on_stale",
        form: "BOOL",
        default: "true",
        doc: "Of an HTTP agent: whether a request that met the close of a kept connection, and had no byte of an answer, is \
              sent once more on a new one, with the same `Idempotency-Key` and attempt (docs/agents.md).",
    },
    AgentSetting {
        name: "system",
        form: "FILE",
        default: "none",
        doc: "Of `model:NAME`: a file with the system prompt, UTF-8 of at most 64 KiB, read at the start.",
    },
    AgentSetting {
        name: "context",
        form: "TOKENS",
        default: "8000",
        doc: "Of `model:NAME`: how many tokens of the earlier conversation are sent with an input, the newest first, at most \
              1000000. A token is counted for each 4 bytes of a message, rounded up, and 4 more for each message.",
    },
    AgentSetting {
        name: "max_output",
        form: "TOKENS",
        default: "none",
        doc: "Of `model:NAME`: the most tokens of an answer, sent as `max_completion_tokens`.",
    },
    AgentSetting {
        name: "served_by",
        form: "USER[|USER…]",
        default: "nobody",
        doc: "Of `dial-in:` only: as whom somebody must have come to serve it for the sessions of every tenant, `USER` \
              of the default tenant or `TENANT/USER`. A key made with `--serves agent:ID` needs no such entry, and \
              serves its own tenant's sessions only. With `auth.mode = \"none\"` anybody may.",
    },
];

/// Returns the names of all agent settings, in the table's order.
pub fn agent_keys() -> impl Iterator<Item = &'static str> {
    AGENT_SETTINGS.iter().map(|setting| setting.name)
}
