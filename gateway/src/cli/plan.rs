//! Builds a node's configuration and agents from flags, environment and file, or returns every mistake.
use super::serve::ServeArgs;
use crate::agent::directory::{AgentSpec, BadAgent, Endpoint, parse_agent};
use crate::auth::pepper::Pepper;
use crate::clock::Clock;
use crate::config::nearest::did_you_mean;
use crate::config::{
    self, Config, ConfigMistake, ConfigSources, EntryText, LoadedConfig, ModelSpec, SettingKey, SettingLocation,
    StoreConfig, TlsFiles, model::ApiKeySource,
};
use crate::models::api_key::ApiKeySlot;
use crate::models::demo;
use crate::tls::CertificatePair;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use turnway_core::id::AgentId;
use turnway_core::time::Millis;

/// Configuration file that is read if none is named and the file exists.
const DEFAULT_FILE: &str = "turnway.toml";

/// The complete configuration of a node.
#[derive(Clone, Debug)]
pub struct NodePlan {
    pub config: Config,
    /// Agents, ordered by the precedence of their sources: flags, environment, file.
    pub agents: Vec<AgentSpec>,
    /// Agent for messages that address none; if `None`, the first of `agents`.
    pub default_agent: Option<AgentId>,
    /// Remarks for the operator; the node starts despite them.
    pub warnings: Vec<ConfigMistake>,
}

/// Reads flags, environment and file.
pub fn read(args: &ServeArgs, env: impl Iterator<Item = (OsString, OsString)>) -> Result<NodePlan, Vec<ConfigMistake>> {
    let mut mistakes = Vec::new();
    let file = read_file(args.config.as_deref()).unwrap_or_else(|mistake| {
        mistakes.push(mistake);
        None
    });
    let mut texts = BTreeMap::new();
    for (name, value) in env {
        // All names of our variables are UTF-8, so any other name is not ours.
        let Ok(name) = name.into_string() else { continue };
        match value.into_string() {
            Ok(value) => drop(texts.insert(name, value)),
            Err(_) if name.starts_with("TURNWAY_") => {
                mistakes.push(ConfigMistake::new(&SettingLocation::Env(name), "the value is not UTF-8"));
            }
            Err(_) => {}
        }
    }
    decide(&ConfigSources { file, env: texts, flags: args.flags.clone() }, mistakes)
}

fn read_file(named: Option<&Path>) -> Result<Option<(PathBuf, String)>, ConfigMistake> {
    let path = named.unwrap_or(Path::new(DEFAULT_FILE));
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some((path.to_owned(), text))),
        Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let location = SettingLocation::File { path: path.to_owned(), line: 1, column: 1 };
            Err(ConfigMistake::new(&location, format!("cannot be read: {error}")))
        }
    }
}

/// Parses the sources into a plan.
fn decide(sources: &ConfigSources, mut mistakes: Vec<ConfigMistake>) -> Result<NodePlan, Vec<ConfigMistake>> {
    let LoadedConfig { config, agents: texts, mistakes: found, warnings } = config::load(sources);
    mistakes.extend(found);
    let demo_model = config.demo.then_some(demo::MODEL);
    let models: Vec<&str> = config.models.iter().map(|spec| spec.name.as_str()).chain(demo_model).collect();
    let mut agents = agents(&sort_by_precedence(texts), &models, &mut mistakes);
    if config.demo {
        // The built-in agents are well-formed; their own tests check that.
        let demo = AgentSpec::demo().unwrap_or_default().into_iter();
        let missing: Vec<_> = demo.filter(|demo| agents.iter().all(|spec| spec.id != demo.id)).collect();
        agents.extend(missing);
    }
    let mut default_agent = None;
    if let Some((text, location)) = &config.default_agent {
        default_agent = agents.iter().map(|spec| &spec.id).find(|id| id.as_str() == text).cloned();
        if default_agent.is_none() {
            let known = agents.iter().map(|spec| spec.id.as_str());
            let what = format!("there is no agent {text:?}{}", did_you_mean(text, known));
            mistakes.push(ConfigMistake::for_key(SettingKey::DefaultAgent, location, what));
        }
    }
    mistakes.extend(config.tls.as_ref().and_then(|files| check_certificate(files, known_time(&config.store))));
    mistakes.extend(config.auth.pepper.as_ref().and_then(check_pepper));
    mistakes.extend(config.models.iter().filter_map(|spec| check_api_key(spec, &sources.env)));
    mistakes.sort();
    if mistakes.is_empty() { Ok(NodePlan { config, agents, default_agent, warnings }) } else { Err(mistakes) }
}

/// Checks a certificate and its key.
fn check_certificate(files: &TlsFiles, now: Millis) -> Option<ConfigMistake> {
    let bad = CertificatePair::read(files, now).err()?;
    let (key, location) =
        if bad.concerns_key(files) { (SettingKey::TlsKey, &files.key.1) } else { (SettingKey::TlsCert, &files.cert.1) };
    Some(ConfigMistake::for_key(key, location, bad.to_string()))
}

/// Returns the current time, as far as it is known before the store is open. A node of a fleet takes its time
/// from the store, so it checks its certificate's validity once the store is open.
fn known_time(store: &StoreConfig) -> Millis {
    match store {
        StoreConfig::Memory | StoreConfig::Embedded { .. } => Clock::start().now().store,
        StoreConfig::Redis { .. } => Millis(0),
    }
}

/// Checks the secret for API keys.
fn check_pepper((path, location): &(PathBuf, SettingLocation)) -> Option<ConfigMistake> {
    let bad = Pepper::read(path).err()?;
    Some(ConfigMistake::for_key(SettingKey::AuthPepper, location, bad.to_string()))
}

/// Checks that the key of an upstream of models can be read.
fn check_api_key(spec: &ModelSpec, env: &BTreeMap<String, String>) -> Option<ConfigMistake> {
    let bad = ApiKeySlot::open(&spec.api_key, |name| env.get(name).cloned()).err()?;
    let key = match &spec.api_key {
        ApiKeySource::File(_) => "api_key_file",
        ApiKeySource::Env(_) | ApiKeySource::None => "api_key_env",
    };
    Some(ConfigMistake::for_key(format!("models.{}.{key}", spec.id), &spec.location, bad.to_string()))
}

/// Parses the agents. `models` are the names of the configured models.
fn agents(texts: &[EntryText], models: &[&str], mistakes: &mut Vec<ConfigMistake>) -> Vec<AgentSpec> {
    let mut agents = Vec::new();
    for text in texts {
        match parse_spec(text) {
            Ok(spec) => add(&mut agents, spec, text.place(), mistakes),
            Err(bad) => mistakes.extend(bad),
        }
    }
    mistakes.extend(agents.iter().filter_map(|(spec, location)| check_model(spec, models, location)));
    agents.into_iter().map(|(spec, _)| spec).collect()
}

/// Checks that the model of an agent is configured.
fn check_model(spec: &AgentSpec, models: &[&str], location: &SettingLocation) -> Option<ConfigMistake> {
    let name = match &spec.endpoint {
        Endpoint::Model(endpoint) if !models.contains(&endpoint.model.as_str()) => &endpoint.model,
        Endpoint::Model(_) | Endpoint::Http(_) | Endpoint::Builtin(_) | Endpoint::DialIn(_) => return None,
    };
    let hint = did_you_mean(name, models.iter().copied());
    let what = format!("there is no model {name:?}{hint}");
    Some(ConfigMistake::for_key(format!("agents.{}.url", spec.id), location, what))
}

/// Sorts agents by precedence: flags, then environment, then file; stable within each.
fn sort_by_precedence(mut texts: Vec<EntryText>) -> Vec<EntryText> {
    texts.sort_by_key(|text| text.place().precedence());
    texts
}

/// Adds an agent, unless a source of higher precedence has one with this id. The same id twice in one source is
/// a mistake.
fn add<'a>(
    agents: &mut Vec<(AgentSpec, &'a SettingLocation)>,
    spec: AgentSpec,
    location: &'a SettingLocation,
    mistakes: &mut Vec<ConfigMistake>,
) {
    let same = agents.iter().find(|(known, _)| known.id == spec.id);
    match same {
        None => agents.push((spec, location)),
        Some((_, known)) if known.precedence() == location.precedence() => {
            mistakes.push(agent_mistake(location, &BadAgent::Duplicate(spec.id)));
        }
        Some(_) => {}
    }
}

fn parse_spec(text: &EntryText) -> Result<AgentSpec, Vec<ConfigMistake>> {
    match text {
        EntryText::Line { text, location } => {
            parse_agent(text).map_err(|bad| bad.iter().map(|bad| agent_mistake(location, bad)).collect())
        }
        EntryText::Table { id, location, pairs } => {
            let words = pairs.iter().map(|(key, value, _)| (key.as_str(), value.as_str()));
            let at = |number: Option<usize>| number.and_then(|n| pairs.get(n)).map_or(location, |(_, _, at)| at);
            let to_mistake = |(number, bad): &(Option<usize>, BadAgent)| agent_mistake(at(*number), bad);
            AgentSpec::parse(id, words).map_err(|bad| bad.iter().map(to_mistake).collect())
        }
    }
}

fn agent_mistake(location: &SettingLocation, bad: &BadAgent) -> ConfigMistake {
    ConfigMistake { location: location.clone(), key: bad.key(), message: bad.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Flag;
    use crate::store::embedded::EmbeddedOptions;
    use std::sync::Arc;

    fn plan(file: &str, flags: &[(Flag, &str)]) -> Result<NodePlan, Vec<String>> {
        let flags = flags.iter().map(|(flag, value)| (*flag, (*value).to_owned())).collect();
        let sources =
            ConfigSources { file: Some(("t.toml".into(), file.to_owned())), flags, ..ConfigSources::default() };
        decide(&sources, Vec::new()).map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect())
    }

    fn names(plan: &NodePlan) -> Vec<&str> {
        plan.agents.iter().map(|spec| spec.id.as_str()).collect()
    }

    /// The table documents the settings for people; the options are used by all code that opens a store.
    #[test]
    fn documented_store_defaults_match_the_code() {
        let plan = plan("", &[]).expect("good");
        let StoreConfig::Embedded { cache_bytes, reserve_bytes, .. } = plan.config.store else { panic!("embedded") };
        let clock = crate::clock::Clock::start();
        let options = EmbeddedOptions::new(Arc::new(move || clock.now()), Arc::new(|_| {}));
        assert_eq!((cache_bytes, reserve_bytes), (options.cache_bytes as u64, options.reserve_bytes));
    }

    #[test]
    fn agent_order_is_flags_then_file_then_demo() {
        let file = "demo = true\n[agents.a]\nurl = \"http://file\"\n[agents.z]\nurl = \"http://file\"\n";
        let plan = plan(file, &[(Flag::Agent, "z=http://flag"), (Flag::Agent, "echo=http://flag")]).expect("good");
        assert_eq!(names(&plan), ["z", "echo", "a", "counter", "assistant"]);
        assert_eq!(plan.default_agent, None);
    }

    #[test]
    fn agent_of_an_unknown_model_is_a_mistake() {
        let file = "[models.gpt-4o]\nurl = \"http://h/v1\"\nname = \"gpt\"\n";
        plan(file, &[(Flag::Agent, "a=model:gpt")]).expect("good");
        let mistakes = plan(file, &[(Flag::Agent, "a=model:gptt"), (Flag::Agent, "b=model:demo")]).expect_err("bad");
        let expected = [
            "flag --agent: agents.a.url: there is no model \"gptt\"; did you mean \"gpt\"?",
            "flag --agent: agents.b.url: there is no model \"demo\"",
        ];
        assert_eq!(mistakes, expected);
        plan("demo = true\n", &[(Flag::Agent, "b=model:demo")]).expect("the demo has a model");
    }

    #[test]
    fn every_agent_error_is_reported_with_its_source() {
        let file = "log = 1\n[agents.a]\ncancel = true\n[agents.b]\nurl = \"http://h\"\nsilence = \"x\"\n";
        let flags = [(Flag::Agent, "c"), (Flag::Agent, "d=http://h"), (Flag::Agent, "d=http://h")];
        let mistakes =
            plan(file, &[&flags[..], &[(Flag::Key(SettingKey::DefaultAgent), "e")]].concat()).expect_err("bad");
        let starts = [
            "t.toml:1:7: log: expected a string",
            "t.toml:2:9: agents.a.url: missing",
            "t.toml:6:11: agents.b.silence: expected a wait such as",
            "flag --agent: expected ID=URL",
            "flag --agent: agents.d: agent d is configured twice",
            "flag --default-agent: default_agent: there is no agent \"e\"",
        ];
        assert_eq!(mistakes.len(), starts.len(), "{mistakes:#?}");
        for (mistake, start) in mistakes.iter().zip(starts) {
            assert!(mistake.starts_with(start), "{mistake}\n{start}");
        }
    }
}
