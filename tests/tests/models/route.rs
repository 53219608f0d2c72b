//! The four routes, each with a request, an answer and an event stream in the format that its public API describes.
use crate::caller::Received;
use serde_json::Value;
use std::ops::RangeInclusive;
use turnway_tests::real::upstream::Answer;

/// A route to models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Chat,
    Responses,
    Messages,
    Embeddings,
}

const CHAT_EVENTS: &[&str] = &[
    "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"m\",\"choices\":\
     [{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}],\"usage\":null}\n\n",
    "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"m\",\"choices\":\
     [{\"index\":0,\"delta\":{\"content\":\"grüß dich 語𝄞\"},\"finish_reason\":null}],\"usage\":null}\n\n",
    "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"m\",\"choices\":\
     [{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":null}\n\n",
    "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"m\",\"choices\":[],\
     \"usage\":{\"prompt_tokens\":30,\"completion_tokens\":12,\"total_tokens\":42,\
     \"prompt_tokens_details\":{\"cached_tokens\":10},\"completion_tokens_details\":{\"reasoning_tokens\":5}}}\n\n",
    "data: [DONE]\n\n",
];

const RESPONSES_EVENTS: &[&str] = &[
    "event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"r1\",\
     \"object\":\"response\",\"created_at\":1700000000,\"model\":\"m\",\"status\":\"in_progress\",\"output\":[],\
     \"parallel_tool_calls\":true,\"tool_choice\":\"auto\",\"tools\":[]}}\n\n",
    "event: response.output_item.added\ndata: {\"type\":\"response.output_item.added\",\"sequence_number\":1,\
     \"output_index\":0,\"item\":{\"id\":\"i1\",\"type\":\"message\",\"role\":\"assistant\",\"status\":\"in_progress\",\
     \"content\":[]}}\n\n",
    "event: response.content_part.added\ndata: {\"type\":\"response.content_part.added\",\"sequence_number\":2,\
     \"item_id\":\"i1\",\"output_index\":0,\"content_index\":0,\"part\":{\"type\":\"output_text\",\"text\":\"\",\
     \"annotations\":[]}}\n\n",
    "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":3,\
     \"item_id\":\"i1\",\"output_index\":0,\"content_index\":0,\"delta\":\"grüß dich 語𝄞\",\"logprobs\":[]}\n\n",
    "event: response.completed\ndata: {\"type\":\"response.completed\",\"sequence_number\":4,\"response\":{\"id\":\"r1\",\
     \"object\":\"response\",\"created_at\":1700000000,\"model\":\"m\",\"status\":\"completed\",\"output\":[{\"id\":\"i1\",\
     \"type\":\"message\",\"role\":\"assistant\",\"status\":\"completed\",\"content\":[{\"type\":\"output_text\",\
     \"text\":\"grüß dich 語𝄞\",\"annotations\":[]}]}],\"parallel_tool_calls\":true,\"tool_choice\":\"auto\",\
     \"tools\":[],\"usage\":{\"input_tokens\":30,\"input_tokens_details\":{\"cached_tokens\":10},\"output_tokens\":12,\
     \"output_tokens_details\":{\"reasoning_tokens\":5},\"total_tokens\":42}}}\n\n",
];

const MESSAGES_EVENTS: &[&str] = &[
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m1\",\"type\":\"message\",\
     \"role\":\"assistant\",\"model\":\"m\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\
     \"usage\":{\"input_tokens\":20,\"cache_read_input_tokens\":10,\"output_tokens\":1}}}\n\n",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\
     \"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
    "event: ping\ndata: {\"type\":\"ping\"}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\
     \"delta\":{\"type\":\"text_delta\",\"text\":\"grüß dich 語𝄞\"}}\n\n",
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\
     \"stop_sequence\":null},\"usage\":{\"output_tokens\":12}}\n\n",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
];

impl Route {
    pub(crate) const ALL: [Self; 4] = [Self::Chat, Self::Responses, Self::Messages, Self::Embeddings];
    /// The routes whose answers can be event streams.
    pub(crate) const STREAMED: [Self; 3] = [Self::Chat, Self::Responses, Self::Messages];

    /// Returns every route with `false`, and with `true` where it can stream.
    pub(crate) fn modes() -> Vec<(Self, bool)> {
        let whole = Self::ALL.map(|route| (route, false));
        let streamed = Self::STREAMED.map(|route| (route, true));
        [&whole[..], &streamed[..]].concat()
    }

    /// Path at the gateway, and behind a base URL that ends with `/v1`.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
            Self::Embeddings => "/v1/embeddings",
        }
    }

    /// Returns a request in an unusual spelling, which nobody who parsed and wrote it again would keep: spaces, escapes,
    /// numbers, unknown members and their order. Chat streams ask for their usage, so that nothing is added.
    pub(crate) fn request(self, model: &str, stream: bool) -> String {
        let odd = "\"z\" : 1.0e+2 ,\t\"a\":-0.0, \"big\":123456789012345678901234567890,\"u\":\"\\u00e9\\/é\"";
        let input = match self {
            Self::Chat => "\"messages\":[ {\"role\":\"user\", \"content\":\"hi\"} ]",
            Self::Responses => "\"input\" :\"hi\"",
            Self::Messages => "\"max_tokens\":1024,\"messages\":[ {\"role\":\"user\", \"content\":\"hi\"} ]",
            Self::Embeddings => "\"input\":[ \"hi\" ,\"ho\"]",
        };
        let usage = match self {
            Self::Chat if stream => ",\"stream_options\":{ \"include_usage\" :true}",
            Self::Chat | Self::Responses | Self::Messages | Self::Embeddings => "",
        };
        let stream = if stream { ", \"stream\": true" } else { "" };
        format!("{{\r\n  {odd}, {input}{stream}{usage}, \"model\"  :  \"{model}\" }}\n")
    }

    /// Returns a whole answer with 30 input tokens (10 of them cached) and 12 output tokens (5 of them for reasoning,
    /// where the API tells).
    pub(crate) fn answer(self) -> &'static str {
        match self {
            Self::Chat => {
                "{\n  \"id\": \"c1\", \"object\": \"chat.completion\", \"created\": 1700000000, \"model\": \"m\",\n  \
                 \"choices\": [{\"index\": 0, \"message\": {\"role\": \"assistant\", \"content\": \"gr\\u00fc\\u00df \
                 dich\"}, \"finish_reason\": \"stop\", \"logprobs\": null}],\n  \"usage\": {\"prompt_tokens\": 30, \
                 \"completion_tokens\": 12, \"total_tokens\": 42, \"prompt_tokens_details\": {\"cached_tokens\": 10}, \
                 \"completion_tokens_details\": {\"reasoning_tokens\": 5}}\n}\n"
            }
            Self::Responses => {
                "{\"id\":\"r1\",\"object\":\"response\",\"created_at\":1700000000,\"model\":\"m\",\
                 \"status\":\"completed\",\"output\":[{\"id\":\"i1\",\"type\":\"message\",\"role\":\"assistant\",\
                 \"status\":\"completed\",\"content\":[{\"type\":\"output_text\",\"text\":\"grüß dich\",\
                 \"annotations\":[]}]}],\"parallel_tool_calls\":true,\"tool_choice\":\"auto\",\"tools\":[],\
                 \"usage\":{\"input_tokens\":30,\"input_tokens_details\":{\"cached_tokens\":10},\"output_tokens\":12,\
                 \"output_tokens_details\":{\"reasoning_tokens\":5},\"total_tokens\":42}}"
            }
            Self::Messages => {
                "{\"id\":\"m1\",\"type\":\"message\",\"role\":\"assistant\",\"model\":\"m\",\"content\":\
                 [{\"type\":\"text\",\"text\":\"grüß dich\"}],\"stop_reason\":\"end_turn\",\"stop_sequence\":null,\
                 \"usage\":{\"input_tokens\":20,\"cache_read_input_tokens\":10,\"output_tokens\":12}}"
            }
            Self::Embeddings => {
                "{\"object\":\"list\",\"model\":\"m\",\"data\":[{\"object\":\"embedding\",\"index\":0,\
                 \"embedding\":[0.5,-1e-7]},{\"object\":\"embedding\",\"index\":1,\"embedding\":[0.25,2]}],\
                 \"usage\":{\"prompt_tokens\":8,\"total_tokens\":8}}"
            }
        }
    }

    /// Returns the events of a stream with the same text and usage; none for embeddings.
    pub(crate) fn events(self) -> &'static [&'static str] {
        match self {
            Self::Chat => CHAT_EVENTS,
            Self::Responses => RESPONSES_EVENTS,
            Self::Messages => MESSAGES_EVENTS,
            Self::Embeddings => &[],
        }
    }

    /// Returns the bytes of the whole event stream.
    pub(crate) fn stream_bytes(self) -> Vec<u8> {
        self.events().concat().into_bytes()
    }

    /// Returns the script of a complete answer.
    pub(crate) fn script(self, stream: bool) -> Answer {
        if stream {
            Answer::events(self.events().iter().map(|event| event.as_bytes()))
        } else {
            Answer::json(200, self.answer())
        }
    }

    /// Returns the bytes of the body of [`Self::script`].
    pub(crate) fn script_bytes(self, stream: bool) -> Vec<u8> {
        if stream { self.stream_bytes() } else { self.answer().into() }
    }

    /// Returns the route whose path ends a path of an upstream.
    pub(crate) fn of(path: &str) -> Self {
        let found = Self::ALL.into_iter().find(|route| path.ends_with(route.path()));
        found.unwrap_or_else(|| panic!("no route to {path}"))
    }

    /// Asserts that an answer is an error of the gateway in the format of this route. The format of `/v1/messages` has
    /// no place for a code, so that only its status, form and `x-should-retry` are compared.
    pub(crate) fn must_be(self, answer: &Received, status: u16, code: &str) {
        assert_eq!(answer.status, status, "{self:?} {code}: {}", answer.text());
        assert_eq!(answer.header("content-type").split(';').next(), Some("application/json"), "{self:?} {code}");
        assert!(["true", "false"].contains(&answer.header("x-should-retry")), "{self:?} {code}: {answer:?}");
        let body = answer.json();
        assert!(body["error"]["message"].as_str().is_some_and(|text| !text.is_empty()), "{body}");
        assert!(body["error"]["type"].is_string(), "{body}");
        match self {
            Self::Messages => assert_eq!(body["type"], "error", "{body}"),
            Self::Chat | Self::Responses | Self::Embeddings => {
                assert_eq!(body["error"]["code"], code, "{body}");
                assert!(body["error"].get("param").is_some(), "{body}");
            }
        }
    }

    /// Asserts that these bytes, which came after those of the upstream, are one error event of the gateway with this
    /// code, and no end of a complete stream.
    pub(crate) fn must_be_error_event(self, rest: &[u8], code: &str) {
        let text = String::from_utf8_lossy(rest);
        let event = text.trim_start_matches('\n');
        assert!(event.ends_with("\n\n") && event.trim_end().lines().count() <= 2, "{self:?}: one event: {text:?}");
        assert!(!text.contains("[DONE]"), "{self:?}: {text:?}");
        let data = event.lines().find_map(|line| line.strip_prefix("data:"));
        let data = data.unwrap_or_else(|| panic!("{self:?}: no data: {text:?}"));
        let data: Value = serde_json::from_str(data).unwrap_or_else(|why| panic!("{self:?}: {why}: {text:?}"));
        match self {
            Self::Messages => {
                assert!(event.starts_with("event: error\n"), "{text:?}");
                assert_eq!(data["type"], "error", "{data}");
            }
            Self::Chat | Self::Embeddings => assert_eq!(data["error"]["code"], code, "{data}"),
            Self::Responses => {
                let found = [&data["code"], &data["error"]["code"]].into_iter().any(|found| found == code);
                assert!(found, "{code}: {data}");
            }
        }
    }
}

/// Positions at which a test without a cut for every byte cuts a body of this length: its ends, and between.
pub(crate) fn some_positions(length: usize) -> Vec<usize> {
    let all: RangeInclusive<usize> = 1..=7;
    all.map(|part| part * length / 8).collect()
}
