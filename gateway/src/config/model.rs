//! Upstreams of models: the table of their settings, and the parsed form of `[models.ID]` and `--model`. Reads neither the
//! environment nor files; `models::api_key` does.
use super::amount::parse_wait;
use super::base_url::BaseUrl;
use super::mistake::{ConfigMistake, SettingLocation};
use super::nearest::did_you_mean;
use super::parse::parse_bool;
use super::raw::EntryText;
use std::path::PathBuf;
use std::time::Duration;
use turnway_core::limits;

/// Characters of an id or a name of a model.
const NAME_CHARACTERS_MAX: usize = 128;
/// Prefix of the names of agents, which no model may have.
const AGENT_PREFIX: &str = "agent/";
/// Largest weight of an upstream.
const WEIGHT_MAX: u32 = 1000;
/// Largest price of a million tokens: a larger one is taken for a typing error.
const PRICE_MAX: u64 = 1_000_000_000_000;
/// Maximum of every time limit; a larger value is taken for a typing error.
const WAIT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct ModelSetting {
    /// Name in `[models.ID]` and after the URL of `--model`.
    pub name: &'static str,
    /// Placeholder for the value.
    pub form: &'static str,
    /// Value if the setting is absent, or how it is determined.
    pub default: &'static str,
    /// A valid value, if `default` is none.
    pub example: Option<&'static str>,
    pub doc: &'static str,
}

/// The table of an upstream's settings.
pub const MODEL_SETTINGS: [ModelSetting; 18] = [
    row(
        "name",
        "NAME",
        "the id",
        "Name of the model, by which callers ask for it. Entries with the same name share its calls by their weights.",
    )
    .shown_as("gpt"),
    row(
        "upstream_model",
        "NAME",
        "the caller's name",
        "Name of the model at the upstream, which replaces the value of `model` in the body.",
    )
    .shown_as("gpt-4o"),
    row(
        "weight",
        "N",
        "1",
        "Share of the calls of its name, from 0 to 1000. With 0 it is asked only where all others of its name failed.",
    ),
    row(
        "fallback",
        "NAME[|NAME…]",
        "none",
        "Names of models whose upstreams are asked, in this order, where those of this name could not serve a call.",
    ),
    row(
        "api_key_env",
        "VARIABLE",
        "none",
        "Environment variable with the provider's key, read at the start. Callers and agents never see the key.",
    ),
    row(
        "api_key_file",
        "FILE",
        "none",
        "File with the provider's key. It is read again within a second when it has changed.",
    ),
    row(
        "key_header",
        "auto|authorization|x-api-key|api-key",
        "auto",
        "Header that carries the key: `auto` is `x-api-key` for `/v1/messages` and `Authorization: Bearer` for the others.",
    ),
    row(
        "price_input",
        "N",
        "none",
        "Price of a million tokens of input, in millionths of your currency: 2500000 is 2.50. Records of calls then have a `cost`.",
    )
    .shown_as("2500000"),
    row(
        "price_cached",
        "N",
        "that of the input",
        "Price of a million tokens of input that came from a cache of the upstream.",
    )
    .shown_as("1250000"),
    row(
        "max_output",
        "N",
        "none",
        "The most tokens that an answer has. A call under a budget reserves them if its body sets no limit; without both it is \
         refused.",
    )
    .shown_as("16384"),
    row("price_output", "N", "none", "Price of a million tokens of output, those of reasoning included.")
        .shown_as("10000000"),
    row(
        "calls",
        "N",
        "256",
        "Calls at this upstream at a time, of one node, at most 4096; further calls go to the next candidate, or get `model_busy`.",
    ),
    row("connect", "WAIT", "3s", "Until there is a connection, with DNS and TLS; at most 30s."),
    row(
        "first_byte",
        "WAIT",
        "5m",
        "From the request to the head of the answer; then `upstream_timeout`. A model that answers as a whole takes its whole time before it.",
    ),
    row("silence", "WAIT", "2m", "Between two pieces of an answer; then it ends with `upstream_timeout`."),
    row("total", "WAIT", "30m", "The whole call."),
    row("keep_alive", "WAIT|off", "30s", "How long an idle connection is kept for the next call; at most 1h."),
    row(
        "retry_reused",
        "BOOL",
        "false",
        "Whether a call is sent once more that met the close of a kept connection and got no byte of an answer. The upstream may have begun it: it may be paid for twice.",
    ),
];

/// One upstream of models, parsed and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSpec {
    pub id: String,
    pub url: BaseUrl,
    /// Name by which callers ask for it.
    pub name: String,
    /// Name at the upstream, if another one.
    pub upstream_model: Option<String>,
    pub weight: u32,
    /// Names whose upstreams are asked next.
    pub fallback: Vec<String>,
    pub api_key: ApiKeySource,
    pub key_header: KeyHeader,
    pub price: ModelPrice,
    /// Tokens of the longest answer, if the operator has said so.
    pub max_output: Option<u64>,
    /// Calls at a time.
    pub calls: usize,
    pub times: ModelTimes,
    /// Time that an idle connection is kept.
    pub keep_alive: Duration,
    pub retry_reused: bool,
    /// Place of the entry, for mistakes that are found later.
    pub location: SettingLocation,
}

/// Prices of a million tokens, in millionths of the operator's currency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelPrice {
    pub input: Option<u64>,
    /// The part of the input that came from a cache; none: as for the rest.
    pub cached: Option<u64>,
    pub output: Option<u64>,
}

/// The time at which a call of a run is recorded in the log of its session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecordCalls {
    /// An upstream is asked once the beginning of the call is durable.
    #[default]
    Before,
    /// An upstream is asked meanwhile.
    After,
}

/// The time limits of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelTimes {
    /// Until there is a connection.
    pub connect: Duration,
    /// From the request to the head of the answer.
    pub first_byte: Duration,
    /// Between two pieces of the answer.
    pub silence: Duration,
    /// The whole call.
    pub total: Duration,
}

/// The place of a provider's key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ApiKeySource {
    /// The upstream needs none.
    #[default]
    None,
    /// An environment variable.
    Env(String),
    File(PathBuf),
}

/// The header that carries a provider's key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyHeader {
    /// Depends on the format of the call.
    #[default]
    Auto,
    Authorization,
    XApiKey,
    /// Used by Azure.
    ApiKey,
}

/// Returns the names of all keys besides `url`, in the table's order.
pub fn model_keys() -> impl Iterator<Item = &'static str> {
    MODEL_SETTINGS.iter().map(|setting| setting.name)
}

const fn row(name: &'static str, form: &'static str, default: &'static str, doc: &'static str) -> ModelSetting {
    ModelSetting { name, form, default, example: None, doc }
}

/// Parses the upstreams of all sources. An id of a stronger source replaces that of a weaker one; the same id twice in one
/// source is a mistake.
pub(super) fn parse_models(mut texts: Vec<EntryText>, mistakes: &mut Vec<ConfigMistake>) -> Vec<ModelSpec> {
    texts.sort_by_key(|text| text.place().precedence());
    let mut specs: Vec<ModelSpec> = Vec::new();
    for text in texts {
        match parse_entry(&text) {
            Err(wrong) => mistakes.extend(wrong),
            Ok(spec) => match specs.iter().find(|known| known.id == spec.id) {
                None => specs.push(spec),
                Some(known) if known.location.precedence() == spec.location.precedence() => {
                    let what = format!("model {} is configured twice", spec.id);
                    mistakes.push(ConfigMistake::for_key(format!("models.{}", spec.id), &spec.location, what));
                }
                Some(_) => {}
            },
        }
    }
    for spec in &specs {
        for name in spec.fallback.iter().filter(|name| specs.iter().all(|other| other.name != **name)) {
            let hint = did_you_mean(name, specs.iter().map(|other| other.name.as_str()));
            let what = format!("there is no model {name:?}{hint}");
            mistakes.push(ConfigMistake::for_key(format!("models.{}.fallback", spec.id), &spec.location, what));
        }
    }
    specs
}

fn parse_entry(text: &EntryText) -> Result<ModelSpec, Vec<ConfigMistake>> {
    match text {
        EntryText::Table { id, location, pairs } => {
            let pairs = pairs.iter().map(|(key, value, at)| (key.as_str(), value.as_str(), at));
            EntryParser::new(id, location).parse(pairs)
        }
        EntryText::Line { text, location } => {
            let Some((id, rest)) = text.split_once('=') else {
                return Err(vec![ConfigMistake::new(location, "expected ID=URL[,key=value…]")]);
            };
            let mut parts = rest.split(',').map(str::trim);
            let mut pairs = vec![("url", parts.next().unwrap_or_default(), location)];
            let mut parser = EntryParser::new(id.trim(), location);
            for part in parts {
                match part.split_once('=') {
                    Some((key, value)) => pairs.push((key.trim(), value.trim(), location)),
                    // The part may be a piece of a secret.
                    None => parser.push(None, location, "expected key=value after the URL".to_owned()),
                }
            }
            parser.parse(pairs)
        }
    }
}

/// The state of parsing one entry.
struct EntryParser<'a> {
    id: &'a str,
    spec: ModelSpec,
    mistakes: Vec<ConfigMistake>,
}

// === impl ModelSetting ===

impl ModelSetting {
    const fn shown_as(self, example: &'static str) -> Self {
        Self { example: Some(example), ..self }
    }
}

// === impl ModelSpec ===

impl ModelSpec {
    /// Creates an upstream with the default settings; none if id or URL are invalid.
    pub fn with_url(id: &str, url: &str) -> Option<Self> {
        let location = SettingLocation::Default;
        EntryParser::new(id, &location).parse([("url", url, &location)]).ok()
    }
}

// === impl EntryParser ===

impl<'a> EntryParser<'a> {
    fn new(id: &'a str, location: &SettingLocation) -> Self {
        let times = ModelTimes {
            connect: limits::MODEL_CONNECT_TIMEOUT,
            first_byte: limits::MODEL_FIRST_BYTE_TIMEOUT,
            silence: limits::MODEL_SILENCE_TIMEOUT,
            total: limits::MODEL_CALL_TIMEOUT,
        };
        let spec = ModelSpec {
            id: id.to_owned(),
            url: BaseUrl::default(),
            name: id.to_owned(),
            upstream_model: None,
            weight: 1,
            fallback: Vec::new(),
            api_key: ApiKeySource::None,
            key_header: KeyHeader::Auto,
            price: ModelPrice::default(),
            max_output: None,
            calls: limits::MODEL_UPSTREAM_CALLS,
            times,
            keep_alive: limits::MODEL_KEEP_ALIVE,
            retry_reused: false,
            location: location.clone(),
        };
        let mut parser = Self { id, spec, mistakes: Vec::new() };
        if let Err(why) = parse_name(id) {
            parser.push(None, location, format!("invalid id of a model: {why}"));
        }
        parser
    }

    fn push(&mut self, key: Option<&str>, location: &SettingLocation, message: String) {
        // A URL in place of an id may hold a secret.
        let id = if parse_name(self.id).is_ok() { self.id } else { "…" };
        let key = key.map_or_else(|| format!("models.{id}"), |key| format!("models.{id}.{key}"));
        self.mistakes.push(ConfigMistake::for_key(key, location, message));
    }

    fn parse<'p>(
        mut self,
        pairs: impl IntoIterator<Item = (&'p str, &'p str, &'p SettingLocation)>,
    ) -> Result<ModelSpec, Vec<ConfigMistake>> {
        let mut seen = Vec::new();
        for (key, value, at) in pairs {
            if seen.contains(&key) {
                self.push(Some(key), at, "given twice".to_owned());
            } else if let Err(why) = self.set(key, value) {
                self.push(Some(key), at, why);
            }
            seen.push(key);
        }
        let location = self.spec.location.clone();
        if !seen.contains(&"url") {
            self.push(Some("url"), &location, "missing".to_owned());
        }
        if self.mistakes.is_empty() { Ok(self.spec) } else { Err(self.mistakes) }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let spec = &mut self.spec;
        match key {
            "url" => spec.url = BaseUrl::parse(value)?,
            "name" => spec.name = parse_name(value)?,
            "upstream_model" => spec.upstream_model = Some(parse_upstream_name(value)?),
            "weight" => spec.weight = parse_count(value, 0, WEIGHT_MAX)?,
            "fallback" if value == "none" => spec.fallback.clear(),
            "fallback" => {
                spec.fallback = value.split('|').map(|name| parse_name(name.trim())).collect::<Result<_, _>>()?
            }
            "api_key_env" | "api_key_file" if value == "none" => {}
            "api_key_env" | "api_key_file" if value.is_empty() => return Err("expected a name".to_owned()),
            "api_key_env" | "api_key_file" if spec.api_key != ApiKeySource::None => {
                return Err("api_key_env and api_key_file exclude each other".to_owned());
            }
            "api_key_env" => spec.api_key = ApiKeySource::Env(value.to_owned()),
            "api_key_file" => spec.api_key = ApiKeySource::File(value.into()),
            "key_header" => spec.key_header = KeyHeader::parse(value)?,
            "max_output" => spec.max_output = parse_output(value)?,
            "price_input" => spec.price.input = parse_price(value)?,
            "price_cached" => spec.price.cached = parse_price(value)?,
            "price_output" => spec.price.output = parse_price(value)?,
            "calls" => spec.calls = parse_count(value, 1, limits::MODEL_CALLS_MAX)?,
            "connect" => spec.times.connect = parse_limit(value, limits::MODEL_CONNECT_TIMEOUT_MAX)?,
            "first_byte" => spec.times.first_byte = parse_limit(value, WAIT_MAX)?,
            "silence" => spec.times.silence = parse_limit(value, WAIT_MAX)?,
            "total" => spec.times.total = parse_limit(value, WAIT_MAX)?,
            "keep_alive" if value == "off" => spec.keep_alive = Duration::ZERO,
            "keep_alive" => spec.keep_alive = parse_limit(value, Duration::from_secs(60 * 60))?,
            "retry_reused" => spec.retry_reused = parse_bool(value)?,
            _ => {
                let hint = did_you_mean(key, model_keys().chain(["url"]));
                let keys: Vec<_> = model_keys().collect();
                return Err(format!("unknown key{hint}; valid keys are url, {}", keys.join(", ")));
            }
        }
        Ok(())
    }
}

// === impl KeyHeader ===

impl KeyHeader {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "authorization" => Ok(Self::Authorization),
            "x-api-key" => Ok(Self::XApiKey),
            "api-key" => Ok(Self::ApiKey),
            _ => Err("expected auto, authorization, x-api-key or api-key".to_owned()),
        }
    }
}

fn parse_name(text: &str) -> Result<String, String> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:".contains(&byte);
    if text.starts_with(AGENT_PREFIX) {
        return Err(format!("names that begin with {AGENT_PREFIX} are those of agents"));
    }
    let fits = (1..=NAME_CHARACTERS_MAX).contains(&text.len()) && text.bytes().all(is_letter) && !text.contains("://");
    if fits { Ok(text.to_owned()) } else { Err("expected 1 to 128 characters of A-Z a-z 0-9 . _ - / :".to_owned()) }
}

fn parse_upstream_name(text: &str) -> Result<String, String> {
    let fits = (1..=256).contains(&text.len()) && !text.chars().any(char::is_control);
    if fits { Ok(text.to_owned()) } else { Err("expected 1 to 256 printable characters".to_owned()) }
}

fn parse_count<N: std::str::FromStr + PartialOrd + std::fmt::Display>(
    text: &str,
    least: N,
    most: N,
) -> Result<N, String> {
    match text.parse() {
        Ok(count) if (&least..=&most).contains(&&count) => Ok(count),
        Ok(_) | Err(_) => Err(format!("expected a number from {least} to {most}")),
    }
}

/// Parses the length of the longest answer in tokens; `none` is an unknown one.
fn parse_output(text: &str) -> Result<Option<u64>, String> {
    let most = u64::from(limits::MODEL_AGENT_OUTPUT_TOKENS_MAX);
    if text == "none" { Ok(None) } else { parse_count(text, 1, most).map(Some) }
}

/// Parses a price of a million tokens; `none` is an unknown one.
fn parse_price(text: &str) -> Result<Option<u64>, String> {
    if text == "none" { Ok(None) } else { parse_count(text, 0, PRICE_MAX).map(Some) }
}

fn parse_limit(text: &str, most: Duration) -> Result<Duration, String> {
    let wait = parse_wait(text).filter(|wait| !wait.is_zero() && *wait <= most);
    wait.ok_or_else(|| format!("expected a wait such as 250ms, 15s or 2m, at most {}s", most.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> EntryText {
        EntryText::Line { text: text.to_owned(), location: SettingLocation::Flag("--model") }
    }

    fn parse(texts: &[&str]) -> Result<Vec<ModelSpec>, Vec<String>> {
        let mut mistakes = Vec::new();
        let specs = parse_models(texts.iter().map(|text| line(text)).collect(), &mut mistakes);
        if mistakes.is_empty() { Ok(specs) } else { Err(mistakes.iter().map(ToString::to_string).collect()) }
    }

    #[test]
    fn model_line_is_parsed_into_its_settings() {
        let specs = parse(&[
            "big=https://h/v1/,name=gpt,weight=3,api_key_env=KEY,upstream_model=gpt-4o,first_byte=2s",
            "meta/llama-3:8b=http://127.0.0.1:9,fallback=gpt,key_header=api-key,keep_alive=off,retry_reused=true",
        ])
        .expect("good");
        let [big, llama] = &specs[..] else { panic!("{specs:?}") };
        assert_eq!((big.url.as_str(), big.name.as_str(), big.weight), ("https://h/v1", "gpt", 3));
        assert_eq!(big.api_key, ApiKeySource::Env("KEY".to_owned()));
        assert_eq!((big.times.first_byte, big.times.silence), (Duration::from_secs(2), limits::MODEL_SILENCE_TIMEOUT));
        assert_eq!((llama.name.as_str(), &llama.fallback[..]), ("meta/llama-3:8b", &["gpt".to_owned()][..]));
        assert_eq!((llama.key_header, llama.keep_alive, llama.retry_reused), (KeyHeader::ApiKey, Duration::ZERO, true));
    }

    #[test]
    fn every_mistake_of_a_model_names_its_key() {
        for (text, start) in [
            ("gpt", "expected ID=URL"),
            ("gpt=ftp://h", "models.gpt.url: the URL must begin"),
            ("gpt=http://u:secret@h", "models.gpt.url: user and password"),
            ("agent/x=http://h", "models.…: invalid id of a model"),
            ("http://u:secret@h", "expected ID=URL"),
            ("http://secret=http://h", "models.…: invalid id of a model"),
            ("gpt=http://h,secret", "models.gpt: expected key=value"),
            ("gpt=http://h,weight=1001", "models.gpt.weight: expected a number from 0 to 1000"),
            ("gpt=http://h,weigth=1", "models.gpt.weigth: unknown key; did you mean \"weight\"?"),
            ("gpt=http://h,weight=1,weight=1", "models.gpt.weight: given twice"),
            ("gpt=http://h,fallback=gtp", "models.gpt.fallback: there is no model \"gtp\"; did you mean \"gpt\"?"),
            ("gpt=http://h,api_key_env=A,api_key_file=b", "models.gpt.api_key_file: api_key_env and"),
            ("gpt=http://h,connect=1h", "models.gpt.connect: expected a wait"),
        ] {
            let mistakes = parse(&[text]).expect_err(text);
            let message = format!("flag --model: {start}");
            assert!(mistakes.iter().any(|mistake| mistake.starts_with(&message)), "{mistakes:?}\n{message}");
            assert!(!format!("{mistakes:?}").contains("secret"), "{mistakes:?}");
        }
    }

    #[test]
    fn stronger_source_replaces_a_model_of_a_weaker_one() {
        let weak =
            EntryText::Line { text: "gpt=http://env".to_owned(), location: SettingLocation::Env("V".to_owned()) };
        let mut mistakes = Vec::new();
        let specs = parse_models(vec![weak, line("gpt=http://flag")], &mut mistakes);
        assert_eq!((specs.len(), specs[0].url.as_str(), mistakes.len()), (1, "http://flag", 0));
        assert_eq!(
            parse(&["gpt=http://a", "gpt=http://b"]),
            Err(vec!["flag --model: models.gpt: model gpt is configured twice".to_owned()])
        );
    }
}
