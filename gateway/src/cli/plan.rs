//! From flags, environment and file to what a node is to be, or to everything that is wrong.
use super::serve::ServeArgs;
use crate::agent::directory::{AgentSpec, BadAgent, parse_agent};
use crate::config::{self, AgentText, Config, Loaded, Mistake, Place, Sources};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use turnway_core::id::AgentId;

/// The file that is read where none is named.
const FILE: &str = "turnway.toml";

/// What a node is to be.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its configuration.
    pub config: Config,
    /// Its agents, the strongest source first.
    pub agents: Vec<AgentSpec>,
    /// Who answers where nobody is addressed; none: the first of them.
    pub default_agent: Option<AgentId>,
}

/// Reads everything an operator has said.
pub fn read(args: &ServeArgs, env: impl Iterator<Item = (OsString, OsString)>) -> Result<Plan, Vec<Mistake>> {
    let file = file(args.config.as_deref()).map_err(|mistake| vec![mistake])?;
    // A variable that is not text is not one of ours.
    let env = env.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    decide(&Sources { file, env: env.collect(), flags: args.flags() })
}

/// All mistakes, a line each.
pub fn list(mistakes: &[Mistake]) -> String {
    mistakes.iter().map(|mistake| format!("turnway: {mistake}\n")).collect()
}

fn file(named: Option<&Path>) -> Result<Option<(PathBuf, String)>, Mistake> {
    let path = named.unwrap_or(Path::new(FILE));
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some((path.to_owned(), text))),
        Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let place = Place::File { path: path.to_owned(), line: 1, column: 1 };
            Err(Mistake::new(&place, format!("cannot be read: {error}")))
        }
    }
}

/// Turns text into a plan.
fn decide(sources: &Sources) -> Result<Plan, Vec<Mistake>> {
    let Loaded { config, agents: texts, mut mistakes } = config::load(sources);
    let mut agents = agents(&by_strength(texts), &mut mistakes);
    if config.demo {
        // Both are well-formed, or the agents' own tests fail.
        let demo = AgentSpec::demo().unwrap_or_default().into_iter();
        let missing: Vec<_> = demo.filter(|demo| agents.iter().all(|spec| spec.id != demo.id)).collect();
        agents.extend(missing);
    }
    let mut default_agent = None;
    if let Some((text, place)) = &config.default_agent {
        default_agent = agents.iter().map(|spec| &spec.id).find(|id| id.as_str() == text).cloned();
        if default_agent.is_none() {
            mistakes.push(Mistake::new(place, format!("default_agent: there is no agent {text:?}")));
        }
    }
    mistakes.sort();
    if mistakes.is_empty() { Ok(Plan { config, agents, default_agent }) } else { Err(mistakes) }
}

fn agents(texts: &[AgentText], mistakes: &mut Vec<Mistake>) -> Vec<AgentSpec> {
    let mut agents = Vec::new();
    for text in texts {
        match spec(text) {
            Ok(spec) => add(&mut agents, spec, text.place(), mistakes),
            Err((place, bad)) => mistakes.push(Mistake::new(place, bad.to_string())),
        }
    }
    agents.into_iter().map(|(spec, _)| spec).collect()
}

/// Flags first, then the environment, then the file; each in its own order.
fn by_strength(mut texts: Vec<AgentText>) -> Vec<AgentText> {
    texts.sort_by_key(|text| match text.place() {
        Place::Flag(_) => 0,
        Place::Env(_) => 1,
        Place::File { .. } | Place::Default => 2,
    });
    texts
}

/// Adds an agent, unless a stronger source has one of this name; twice in one source is a mistake.
fn add<'a>(
    agents: &mut Vec<(AgentSpec, &'a Place)>,
    spec: AgentSpec,
    place: &'a Place,
    mistakes: &mut Vec<Mistake>,
) {
    let same = agents.iter().find(|(known, _)| known.id == spec.id);
    match same {
        None => agents.push((spec, place)),
        Some((_, known)) if std::mem::discriminant(*known) == std::mem::discriminant(place) => {
            mistakes.push(Mistake::new(place, BadAgent::Same(spec.id).to_string()));
        }
        Some(_) => {}
    }
}

fn spec(text: &AgentText) -> Result<AgentSpec, (&Place, BadAgent)> {
    match text {
        AgentText::Line { text, place } => parse_agent(text).map_err(|bad| (place, bad)),
        AgentText::Table { id, place, pairs } => {
            let url = pairs.iter().find(|(key, _, _)| key == "url");
            let missing = || BadAgent::Url { agent: id.clone(), why: "there is none" };
            let (_, url, at) = url.ok_or_else(|| (place, missing()))?;
            let mut spec = AgentSpec::new(id, url).map_err(|bad| (at, bad))?;
            for (key, value, at) in pairs.iter().filter(|(key, _, _)| key != "url") {
                spec.set(key, value).map_err(|bad| (at, bad))?;
            }
            Ok(spec)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Flag, Key};

    fn plan(file: &str, flags: &[(Flag, &str)]) -> Result<Plan, Vec<String>> {
        let flags = flags.iter().map(|(flag, value)| (*flag, (*value).to_owned())).collect();
        let sources = Sources { file: Some(("t.toml".into(), file.to_owned())), flags, ..Sources::default() };
        decide(&sources).map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect())
    }

    fn names(plan: &Plan) -> Vec<&str> {
        plan.agents.iter().map(|spec| spec.id.as_str()).collect()
    }

    #[test]
    fn the_first_flag_comes_first_and_the_demo_last() {
        let file = "demo = true\n[agents.a]\nurl = \"http://file\"\n[agents.z]\nurl = \"http://file\"\n";
        let plan =
            plan(file, &[(Flag::Agent, "z=http://flag"), (Flag::Agent, "echo=http://flag")]).expect("good");
        assert_eq!(names(&plan), ["z", "echo", "a", "counter"]);
        assert_eq!(plan.default_agent, None);
    }

    #[test]
    fn every_mistake_of_agents_is_told_with_its_place() {
        let file = "log = 1\n[agents.a]\ncancel = true\n[agents.b]\nurl = \"http://h\"\nsilence = \"x\"\n";
        let flags = [(Flag::Agent, "c"), (Flag::Agent, "d=http://h"), (Flag::Agent, "d=http://h")];
        let said =
            plan(file, &[&flags[..], &[(Flag::Key(Key::DefaultAgent), "e")]].concat()).expect_err("bad");
        let starts = [
            "t.toml:1:7: log: expected a string",
            "t.toml:2:9: agent a: bad URL: there is none",
            "t.toml:6:11: agent b: silence=x",
            "flag --agent: agent \"c\": expected ID=URL",
            "flag --agent: agent d is configured twice",
            "flag --default-agent: default_agent: there is no agent \"e\"",
        ];
        assert_eq!(said.len(), starts.len(), "{said:#?}");
        for (said, start) in said.iter().zip(starts) {
            assert!(said.starts_with(start), "{said}\n{start}");
        }
    }
}
